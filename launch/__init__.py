"""The programs behind the command `gr-jax`, installed as gr_jax.launch; in a checkout also `python -m launch.NAME`."""
