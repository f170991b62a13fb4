"""Epochs of a stream, and streams of other keys, have orders of their own."""

import numpy as np
import pytest

from gr_jax.training import order


@pytest.mark.parametrize("by_arithmetic", [False, True])
def test_orders_differ(monkeypatch, by_arithmetic):
    if by_arithmetic:
        monkeypatch.setattr(order, "_LISTED", 0)
    size = 100
    orders = [order.Stream(np.arange(size), key).at(np.arange(3 * size)) for key in ((1, 2), (2, 2), (1, 3))]
    epochs = np.concatenate(orders).reshape(-1, size)
    # Of two random orders of a hundred rows one place is equal, in the mean.
    for number, one in enumerate(epochs):
        assert ((one == epochs[:number]).sum(axis=1) < 10).all()
