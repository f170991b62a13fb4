"""Every docid scheme from a folder of documents to answers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import gr_jax
from gr_jax import systems
from gr_jax.errors import InputError
from tests.small_dsi import COUNT, dsi, quiet, training

WITHOUT_LEVELS = ("titles", "naive_numeric")


def chosen(scheme: str, **changes: Any) -> systems.DSI:
    normalize = "vocabulary" if scheme in WITHOUT_LEVELS else "level"
    return dsi(
        identifiers=systems.Identifiers(scheme=scheme, codebooks=2, bits=2),
        training=training(**{"steps": 3, "normalize": normalize, **changes}),
        decoding=systems.Decoding(beams=10, normalize=normalize),
    )


@pytest.mark.parametrize(
    ("scheme", "trained"),
    [
        ("residual_quantization", False),
        pytest.param("residual_quantization", True, marks=pytest.mark.slow),
        pytest.param("titles", True, marks=pytest.mark.slow),
    ],
)
def test_trains_and_answers(beir, tmp_path, scheme, trained):
    said = []
    system = chosen(scheme) if trained else dataclasses.replace(chosen(scheme), training=None)
    system.run(beir, tmp_path / "mine", until="index", say=said.append)
    assert len([line for line in said if line.startswith("✓")]) == (8 if trained else 6)
    searcher = gr_jax.load(tmp_path / "mine" / "index")
    docids = searcher.retriever.docids
    assert docids.scheme == scheme
    ranking = searcher.retriever.retrieve(["a red cat", "the owl"], COUNT, explain=True)
    for found, scores, evidence in zip(ranking.doc_index, ranking.score, ranking.evidence, strict=True):
        assert sorted(found) == list(range(COUNT)) and (np.diff(scores) <= 0).all()
        for document, (reason,) in zip(found, evidence, strict=True):
            (row,) = docids.rows_of(int(document))
            assert list(reason.tokens) == docids.sequence(row)
            if scheme == "titles":
                assert reason.text == docids.name(row) == searcher.corpus[int(document)].title


@pytest.mark.parametrize("scheme", WITHOUT_LEVELS)
def test_schemes_without_levels_have_no_normaliser_for_them(beir, tmp_path, scheme):
    with pytest.raises(InputError, match=f"{scheme} docids have no levels"):
        dsi(identifiers=systems.Identifiers(scheme=scheme)).run(beir, tmp_path / "mine", say=quiet)
    assert not (tmp_path / "mine").exists()


def test_titles_that_would_be_cut_in_training_are_refused():
    with pytest.raises(InputError, match="titles of 24 tokens.*row_targets to 25 or more"):
        chosen("titles", row_targets=24)
