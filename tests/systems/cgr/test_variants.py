"""Async and Contra on a few documents: the decoder's vocabulary is made by the network's own encoder."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.contextual_states import own_encoder
from gr_jax.models.text_encoder import TextEncoder
from gr_jax.models.title_tokens import TitleTokenModel
from gr_jax.stages import pretrained
from gr_jax.stages.docids import load_docids
from gr_jax.stages.networks import Network
from gr_jax.stages.write_docids import Training
from gr_jax.systems.cgr import CGRAsync, CGRContra, Contextual, TitleDecoding, rebuilding
from gr_jax.systems.cgr.aligning import Aligning
from gr_jax.systems.cgr.vocabulary import load_table, load_text_of, load_titles
from gr_jax.text import ByteVocabulary
from tests import compiled, small_data
from tests.models import random_folders

COUNT, TITLE, ROW = 16, 20, 96
TABLES = ("decoder_token_embedder", "decoder/logits_dense")


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    pytest.importorskip("bm25s")
    pytest.importorskip("Stemmer")
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=COUNT)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return random_folders.write_bert(
        tmp_path_factory.mktemp("encoder") / "bert", vocab_size=264, max_position_embeddings=128
    )


def small(system, encoder, *, multipliers, **changes) -> Any:
    training = Training(
        steps=8, batch_size=4, learning_rate=1e-2, warmup_steps=1, rates={"query": 1.0}, normalize="vocabulary",
        dev_queries=None, checkpoint_every=1, multipliers=multipliers,
    )  # fmt: skip
    given: dict[str, Any] = {
        "contextual": Contextual(encoder=str(encoder), clusters=2, length=ROW, title_tokens=TITLE),
        "network": Network(
            encoder=str(encoder), vocabulary="byte", width=32, heads=2, mlp_width=32, decoder_layers=1, dropout=0.0,
            outputs="random",
        ),
        "training": training,
        "decoding": TitleDecoding(beams=8),
    }  # fmt: skip
    return system(**{**given, **changes})


def run(system, beir, folder, until="model"):
    system.run(beir, folder, until=until, say=lambda line: None)
    return network_folder.load_network(folder / "model")


def shared(folder, stage):
    return next((folder.parent / "shared").glob(f"{stage}-*"))


def means_of(beir, folder, config, params) -> dict[int, np.ndarray]:
    """Id → the direction of the mean of what an encoder makes of the tokens that are written with it."""
    words, titles, written = ByteVocabulary(), load_titles(folder), load_docids(folder)
    texts, states = corpus_lib.read_beir(beir).corpus.texts, {}
    for document, text in enumerate(texts):
        (row,), (page,) = written.rows_of(document), titles.rows_of(document)
        front = [token - titles.meta["shift"] for token in titles.sequence(int(page))]
        read = [*words.prefix, *front, *words.encode(text)][: ROW - len(words.suffix)] + list(words.suffix)
        rows = np.pad(np.array([read], np.int32), ((0, 0), (0, ROW - len(read))))
        whole = np.asarray(compiled.run(TextEncoder(config), params, rows))[0, len(words.prefix) :]
        for target, state in zip(written.sequence(int(row)), whole, strict=False):
            states.setdefault(target, []).append(state)
    means = {target: np.mean(own, axis=0) for target, own in states.items()}
    return {target: mean / np.linalg.norm(mean) for target, mean in means.items()}


@pytest.fixture(scope="module")
def written(beir, encoder, tmp_path_factory):
    """A network that writes titles."""
    system = small(CGRAsync, encoder, multipliers={"encoder": 0.0, "token_embedder": 0.0}, rebuilds=0)
    return run(system, beir, tmp_path_factory.mktemp("written") / "base")


def leaves(params):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_an_encoder_that_learns_nothing_makes_the_same_vocabulary(written, beir, encoder, tmp_path):
    """Then Async is Base, to the last bit."""
    frozen = {"encoder": 0.0, "token_embedder": 0.0}
    _, base = written
    _, same = run(small(CGRAsync, encoder, multipliers=frozen, rebuilds=3), beir, tmp_path / "async")
    for path, leaf in leaves(base).items():
        np.testing.assert_array_equal(leaf, leaves(same)[path], err_msg=path)


def test_the_vocabulary_is_what_the_encoder_of_the_moment_makes(beir, encoder, tmp_path, monkeypatch):
    seen, rebuilder = [], rebuilding.Rebuilder.__call__

    def watched(self, params, step):
        seen.append((step, own_encoder(self.module, params), rebuilder(self, params, step)))
        return seen[-1][2]

    monkeypatch.setattr(rebuilding.Rebuilder, "__call__", watched)
    system = small(CGRAsync, encoder, multipliers={"encoder": 1.0}, rebuilds=1)
    _, params = run(system, beir, tmp_path / "run")
    ((step, (config, of_encoder), made),) = seen
    assert step == 4
    again = load_docids(tmp_path / "run" / "model")  # titles in the ids of the matrix that is kept
    pages = load_titles(shared(tmp_path / "run", "contextual_vocabulary"))
    for page in range(len(pages)):
        (row,) = again.rows_of(int(pages.documents_of(page)[0]))
        assert again.target(int(row)) == [one for one in made[rebuilding.TARGETS][page].tolist() if one >= 0]
    np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], made[rebuilding.OUTPUTS])
    folder = shared(tmp_path / "run", "contextual_vocabulary")
    titles, text_of, first = load_titles(folder), load_text_of(folder), load_table(folder)
    rows = np.asarray(params["decoder"]["logits_dense"]["kernel"]).T * system.network.temperature
    assert np.abs(rows - first).max() > 0.01
    # Titles in the new ids are the same texts, and each id is the mean of what the encoder made of its tokens.
    targets = made[rebuilding.TARGETS]
    for page in range(len(titles)):
        written = targets[page][targets[page] >= 0]
        assert text_of[written].tolist() == titles.target(page)
    words, texts, states = ByteVocabulary(), corpus_lib.read_beir(beir).corpus.texts, {}
    for page in range(len(titles)):
        front = [token - titles.meta["shift"] for token in titles.sequence(page)]
        text = words.encode(texts[int(titles.documents_of(page)[0])])
        read = [*words.prefix, *front, *text][: ROW - len(words.suffix)] + list(words.suffix)
        tokens = np.pad(np.array([read], np.int32), ((0, 0), (0, ROW - len(read))))
        whole = np.asarray(compiled.run(TextEncoder(config), of_encoder, tokens))[0, len(words.prefix) :]
        for target, state in zip(targets[page].tolist(), whole[: len(front)], strict=False):
            states.setdefault(target, []).append(state)
    for target, own in states.items():
        mean = np.mean(own, axis=0)
        np.testing.assert_allclose(rows[target], mean / np.linalg.norm(mean), atol=1e-4)


@pytest.mark.slow
def test_an_interrupted_training_ends_the_same(beir, encoder, tmp_path, monkeypatch):
    system = small(CGRAsync, encoder, multipliers={"encoder": 1.0}, rebuilds=3)
    _, whole = run(system, beir, tmp_path / "whole" / "run")
    rebuilder = rebuilding.Rebuilder.__call__

    def killed(self, params, step):
        if step == 4:
            raise KeyboardInterrupt
        return rebuilder(self, params, step)

    monkeypatch.setattr(rebuilding.Rebuilder, "__call__", killed)
    with pytest.raises(BaseException, match="matrix"):
        run(system, beir, tmp_path / "cut" / "run")
    monkeypatch.undo()
    _, again = run(system, beir, tmp_path / "cut" / "run")
    for path, leaf in leaves(whole).items():
        np.testing.assert_array_equal(leaf, leaves(again)[path], err_msg=path)


@pytest.mark.slow
def test_contra_starts_from_what_finds_tokens(beir, encoder, tmp_path):
    """The first step's encoder makes the vocabulary of the second, which goes on from its parameters."""
    aligning = Aligning(
        steps=30, batch_size=4, learning_rate=1e-2, warmup_steps=1, evaluate_every=None, dev_queries=None,
        checkpoint_every=None, multipliers={"encoder": 0.1},
    )  # fmt: skip
    system = small(CGRContra, encoder, multipliers={"encoder": 1.0}, aligning=aligning)
    still = dataclasses.replace(system, training=dataclasses.replace(system.training, learning_rate=0.0))
    _, params = run(still, beir, tmp_path / "run")
    module, found = network_folder.load_network(tmp_path / "run" / "aligned")
    start = pretrained.load_stack(str(encoder), 0.0)[1]["encoder"]
    moved = [np.abs(leaf - leaves(found["encoder"])[path]).max() for path, leaf in leaves(start).items()]
    assert max(moved) > 1e-3
    for path, leaf in leaves(found).items():
        if not any(table in path.replace("']['", "/") for table in TABLES):
            np.testing.assert_array_equal(leaf, leaves(params)[path], err_msg=path)
    states = shared(tmp_path / "run", "aligned_title_states").name.split("-")[1]
    folder = next(
        one for one in (tmp_path / "shared").glob("contextual_vocabulary-*")
        if states in (one / "manifest.json").read_text()
    )  # fmt: skip
    table = load_table(folder)
    means = means_of(beir, folder, *own_encoder(module, found))
    for target, mean in means.items():
        np.testing.assert_allclose(table[target], mean, atol=1e-4)
    rows = np.asarray(params["decoder"]["logits_dense"]["kernel"]).T
    given = np.any(table != 0, axis=1)
    np.testing.assert_allclose(rows[given], table[given] / system.network.temperature, rtol=1e-5)


@pytest.mark.parametrize("loss", ["all_positives", "one_positive", "in_batch"])
def test_what_is_aligned_is_what_is_written_first(loss, written):
    """The loss of a batch, term by term, from the scores of all first tokens."""
    module, params = written
    eos, questions = module.vocab_size - 1, np.array([[5, 6, 7, 0], [9, 8, 0, 0], [5, 0, 0, 0]], np.int32)
    tokens = np.array([[3, 4, 3, eos], [4, 7, eos, 0], [9, eos, 0, 0]], np.int32)
    batch = {"encoder_input_tokens": questions, "decoder_target_tokens": tokens}
    total, metrics = jax.jit(TitleTokenModel(module, loss=loss, eos_id=eos).loss_fn)(params, batch)
    logits = np.asarray(compiled.run(module, params, questions, np.zeros_like(tokens)), np.float64)[:, 0]
    expected = 0.0
    for row, own in zip(logits, ([3, 4, 3], [4, 7], [9]), strict=True):
        others = {3, 4, 7, 9} - set(own)
        for token in own:
            positive = set(own) if loss == "all_positives" else {token}
            negative = others if loss == "in_batch" else set(range(1, len(row))) - positive
            above = np.exp(row[list(positive)]).sum()
            expected -= np.log(above / (above + np.exp(row[list(negative)]).sum()))
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["weight_sum"]) == 6


def test_what_does_not_fit(encoder):
    system = small(CGRAsync, encoder, multipliers=None)
    vanilla = dataclasses.replace(system.contextual, vanilla=True)
    for changes in ({"contextual": vanilla}, {"training": None}):
        with pytest.raises(InputError, match=r"CGRAsync\.rebuilds to 0 and CGRAsync\.aligning to None"):
            dataclasses.replace(system, **changes)
        with pytest.raises(InputError, match=r"CGRAsync\.rebuilds to 0 and CGRAsync\.aligning to None"):
            dataclasses.replace(system, rebuilds=0, aligning=Aligning(), **changes)
    with pytest.raises(InputError, match="multiple of 4"):
        dataclasses.replace(system, training=dataclasses.replace(system.training, steps=9))
