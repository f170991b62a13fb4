"""What README's tables are printed by: `python -m benchmarks.NAME`. Recorded rows are in results/."""
