"""What starts a run on a cluster; see `gr-jax cluster`."""
