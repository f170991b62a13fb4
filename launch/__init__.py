"""Entry points, run from a checkout: `python -m launch.recipe --gin_file=… --gin.NAME=value`."""
