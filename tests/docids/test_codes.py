"""From docids back to codes."""

import numpy as np
import pytest

from gr_jax import clustering
from gr_jax.docids import atomic, codes_of, residual_quantization
from gr_jax.errors import InputError

POINTS = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
SETTINGS = {"levels": 3, "bits": 2, "seed": 1}


@pytest.mark.parametrize("policy", ["number", "share", "reserved"])
def test_codes_are_those_of_the_quantiser(policy):
    expected = clustering.residual_quantization(POINTS, **SETTINGS).codes
    np.testing.assert_array_equal(codes_of(residual_quantization(POINTS, **SETTINGS, collisions=policy)), expected)


def test_what_has_no_codes():
    with pytest.raises(InputError, match="have no codes"):
        codes_of(atomic(3))
    of_passages = residual_quantization(POINTS, **SETTINGS).for_documents(np.arange(60) // 2, 30)
    with pytest.raises(InputError, match="30 documents have 60 docids"):
        codes_of(of_passages)
