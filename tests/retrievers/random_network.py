"""Parameters for networks of tests."""

import jax
import numpy as np

from gr_jax import models


def random_parameters(module: models.EncoderDecoder | models.DecoderOnly, seed: int):
    """Larger than at initialisation, so that scores differ clearly."""
    tokens = np.ones((1, 4), np.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]  # nothing to compile
    random = np.random.default_rng(seed)

    def draw(path, leaf) -> np.ndarray:
        center = 1.0 if "scale" in str(path[-1]) else 0.0
        return np.asarray(center + 0.3 * random.normal(size=leaf.shape), np.float32)

    return jax.tree_util.tree_map_with_path(draw, dict(shapes))
