"""What `TokenEncoder` does around its network."""

import os
import resource

import numpy as np
import pytest

from gr_jax.dense.token_vectors import TokenRows
from gr_jax.systems.colbert.token_encoder import TokenEncoder


class Lengths(TokenEncoder):
    """A text's length for vectors, of no network."""

    fingerprint = "lengths"

    def __init__(self):
        pass

    def _rows(self, texts, precision, advance):
        return TokenRows.of([np.full((1, 4), len(text), np.float32) for text in texts], precision=precision)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_of_many_shards_few_are_open_at_a_time(tmp_path, precision):
    texts = ["x" * number for number in range(60)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 40, hard))
    try:
        vectors = Lengths().encode_documents(texts, tmp_path / "vectors", precision=precision, shard_size=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_allclose([vectors.document(number)[0, 0] for number in range(60)], range(60), rtol=1e-6)
