"""What measures every number of README and the site: `python -m benchmarks.NAME`. Recorded rows are in results/."""
