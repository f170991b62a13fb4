"""The stages that several systems share, and what runs them: `graph`, `runner`, `settings` and `keys`.

Nothing is imported here, so that a system brings only the stages that it names.
"""
