"""What starts a run on a cluster; see `python -m launch.cluster`."""
