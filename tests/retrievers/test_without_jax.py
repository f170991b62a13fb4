"""A BM25 index is opened and searched without JAX, which takes longer to import than to search."""

import pathlib
import subprocess
import sys

from gr_jax.corpus import Dataset
from gr_jax.retrievers import BM25, index

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
CODE = """
import sys, gr_jax
assert not {"numpy", "gr_jax.errors"} & {*sys.modules}, "importing gr_jax alone imports more than it has to"
(hit,) = gr_jax.load(sys.argv[1]).search("who sees at night?", k=1)
print(hit.doc_id, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_load_and_search(tmp_path):
    corpus = Dataset.from_texts(["Cats sleep all day.", "Owls see at night."]).corpus
    index.save(tmp_path / "index", BM25(corpus), corpus)
    command = [sys.executable, "-c", CODE, str(tmp_path / "index")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, *modules = done.stdout.split()
    assert found == "1"
    heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "bm25s", "tensorflow", "torch", "transformers", "matplotlib"}
    assert not heavy & set(modules)
