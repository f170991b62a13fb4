"""Late interaction and BM25 → cross-encoder from documents to an index, with networks that train in seconds."""

import dataclasses
import json
import string

import jax
import numpy as np
import pytest

from gr_jax import recipes
from gr_jax.errors import InputError
from gr_jax.models import BertConfig, CrossEncoder, CrossEncoderConfig, LateInteraction, LateInteractionConfig
from gr_jax.recipes import cross_encoder, late_interaction, learning, pair_training
from gr_jax.recipes.interaction_settings import Crossing, Interaction
from gr_jax.retrievers.token_encoder import TokenEncoder
from gr_jax.text import ByteVocabulary
from gr_jax.training.optimizers import adamw
from gr_jax.training.train_state import flatten
from tests.small_data import write_beir

TINY = recipes.Encoders(
    encoder="t5", vocabulary="byte", width=16, layers=1, heads=2, mlp_width=24, query_length=32, document_length=48
)
COMMON = {
    "encoders": TINY,
    "pseudo_queries": recipes.PseudoQueries(kinds={"title": 1}),
    "mined": recipes.Mining(shares={"bm25": 0.5, "random": 0.5}, kept=4),
}


def _training(steps):
    return recipes.ContrastiveTraining(
        steps=steps, batch_size=8, negatives=2, warmup_steps=0, learning_rate=1e-3, evaluate_every=4, dev_queries=8,
        dev_documents=16, checkpoint_every=4, mesh=(1, 1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", count=24)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


def test_colbert(folder, shared, tmp_path):
    said: list[str] = []
    searcher = late_interaction.colbert(
        folder, tmp_path / "run", interaction=Interaction(dimension=8, augmentation=36, precision="int8"),
        training=_training(4), shared_dir=shared, say=said.append, **COMMON,
    )  # fmt: skip
    assert searcher is not None and len(searcher.search("where is the red cat", 5)) == 5
    assert searcher.retriever.vectors.precision == "int8"
    values = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert set(values["test"]) == {"BM25", "ColBERT"}
    # What a first stage would change comes after training, and nothing else is made again.
    said.clear()
    searcher = late_interaction.colbert(
        folder, tmp_path / "run", interaction=Interaction(dimension=8, augmentation=36, precision="int8", first="bm25"),
        training=_training(4), shared_dir=shared, say=said.append, until="index", **COMMON,
    )  # fmt: skip
    assert any("model: already made" in line for line in said)
    assert searcher is not None and searcher.retriever.first is not None
    assert searcher.search("where is the red cat", 5)


def test_bm25_cross_encoder(folder, shared, tmp_path):
    searcher = cross_encoder.bm25_cross_encoder(
        folder, tmp_path / "run", crossing=Crossing(depth=5), training=_training(4), shared_dir=shared, say=str,
        **COMMON,
    )  # fmt: skip
    assert searcher is not None
    hits = searcher.search("where is the red cat", 5)
    first = searcher.retriever.first.retrieve(["where is the red cat"], 5).doc_index[0]
    assert {hit.doc_id for hit in hits} == {searcher.corpus.doc_ids[int(index)] for index in first if index >= 0}
    values = json.loads((tmp_path / "run" / "results" / "metrics.json").read_text())
    assert set(values["test"]) == {"BM25", "BM25 → cross-encoder"}


@pytest.mark.parametrize(
    "recipe, more",
    [(late_interaction.colbert, {"interaction": Interaction(dimension=8)}), (cross_encoder.bm25_cross_encoder, {})],
)
def test_without_training_nothing_is_made_for_it(folder, shared, tmp_path, recipe, more):
    searcher = recipe(
        folder, tmp_path / "run", training=_training(0), shared_dir=shared, say=str, until="index",
        **{**COMMON, **more, "encoders": dataclasses.replace(TINY, document_length=40)},
    )  # fmt: skip
    assert searcher is not None and len(searcher.search("where is the red cat", 3)) == 3
    manifest = json.loads((tmp_path / "run" / "model" / "manifest.json").read_text())
    assert set(manifest["meta"]["inputs"]) == {"corpus", "vocabulary"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, more",
    [(late_interaction.colbert, {"interaction": Interaction(dimension=8)}), (cross_encoder.bm25_cross_encoder, {})],
)
def test_an_interrupted_training_ends_with_the_same_bits(folder, shared, tmp_path, monkeypatch, recipe, more):
    def run(name):
        recipe(
            folder, tmp_path / name, training=_training(8), shared_dir=shared, say=str, until="model", **COMMON, **more
        )
        files = sorted((tmp_path / name / "model").rglob("*.safetensors"))
        return [file.read_bytes() for file in files]

    whole, judged, judge = run("whole"), [], learning.DevEvaluation.__call__

    def interrupted(self, params, step):
        judged.append(step)
        if judged == [0, 4, 8]:
            raise KeyboardInterrupt
        return judge(self, params, step)

    monkeypatch.setattr(learning.DevEvaluation, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert run("cut") == whole and whole and judged == [0, 4, 8, 8]


def test_principal_axes_keep_the_order_of_states():
    """As many axes as numbers: the untrained projection only turns, so products of states stay."""
    tokens = np.ones((1, 8), np.int32)
    for dimension in (16, 17):
        module, _ = late_interaction.make_network(TINY, Interaction(dimension=dimension), ByteVocabulary())
        params = jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]
        encoder = TokenEncoder(module, params, ByteVocabulary())
        if dimension == 16:
            turned = late_interaction.with_principal_axes(encoder, ["some text", "other"])
            kernel = turned["projection"]["kernel"]
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(16), atol=1e-5)
        else:
            with pytest.raises(InputError, match="principal axes"):
                late_interaction.with_principal_axes(encoder, ["some text"])


def test_special_tokens_are_none_that_texts_have():
    module, _ = late_interaction.make_network(TINY, Interaction(dimension=8, markers=True), ByteVocabulary())
    config, size = module.config, ByteVocabulary().size
    special = [config.mask_token, config.query_marker or 0, config.document_marker or 0]
    assert len({*special}) == 3 and min(special) >= size and max(special) < config.encoder.vocab_size
    assert set(config.skipped_tokens) == {ByteVocabulary().encode(symbol)[0] for symbol in string.punctuation}


def test_multipliers_name_parameters_that_there_are():
    """A pretrained BERT's lower half stands still, what is new beside it moves faster."""
    bert = BertConfig(vocab_size=30, emb_dim=8, num_heads=2, num_encoder_layers=4, mlp_dim=8, max_positions=32)
    tokens = np.ones((1, 4), np.int32)
    for module, faster in (
        (LateInteraction(LateInteractionConfig(bert, dimension=4, whole_text=True)), late_interaction._FASTER),
        (CrossEncoder(CrossEncoderConfig(bert, similarity=True)), cross_encoder._FASTER),
    ):
        shapes = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]
        found = pair_training.learning_rate_multipliers(shapes, shapes, faster)
        factors = adamw(1e-3, multipliers=found).factors(flatten(shapes))
        still = {path for path, factor in factors.items() if not factor}
        assert {path.split("/")[1] for path in still if path.startswith("encoder")} == {
            "position_embedder", "token_type_embedder", "embedding_layer_norm", "layers_0", "layers_1",
        }  # fmt: skip
        assert "token_embedder/embedding" in still
        new = {path.split("/")[0] for path, factor in factors.items() if factor > 1}
        assert new == set(shapes) - {"token_embedder", "encoder"}
        assert pair_training.learning_rate_multipliers(shapes, None, faster) == {}


def test_bad_settings(folder, tmp_path):
    with pytest.raises(InputError, match="negatives of the kinds"):
        late_interaction.colbert(folder, tmp_path, **{**COMMON, "mined": recipes.Mining(shares={"cluster": 1.0})})
    for recipe in (late_interaction.colbert, cross_encoder.bm25_cross_encoder):
        with pytest.raises(InputError, match="reads no prefixes"):
            recipe(folder, tmp_path, **{**COMMON, "encoders": dataclasses.replace(TINY, query_prefix="query: ")})
    with pytest.raises(InputError, match="chunks"):
        cross_encoder.bm25_cross_encoder(
            folder, tmp_path, training=recipes.ContrastiveTraining(steps=1, chunks=2), **COMMON
        )
    with pytest.raises(InputError, match="own negatives alone"):
        cross_encoder.bm25_cross_encoder(
            folder, tmp_path, training=recipes.ContrastiveTraining(steps=1, negatives=0), **COMMON
        )
    with pytest.raises(InputError, match="no loss"):
        Crossing(softmax=0.0)
