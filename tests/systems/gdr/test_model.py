import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, BiEncoderConfig, EncoderDecoder, T5Config, TextEncoder
from gr_jax.systems.gdr.model import GDRModel
from gr_jax.training import make_mesh
from gr_jax.training.partitioning import LOGICAL_AXIS_RULES, batch_sharding, on_mesh
from tests import compiled

LEVELS = ((2, 4), (6, 5))
BERT = BertConfig(vocab_size=40, emb_dim=12, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=16)
T5 = T5Config(vocab_size=16, emb_dim=8, num_heads=2, head_dim=4, num_decoder_layers=1, mlp_dim=12)
MODULE = EncoderDecoder(BERT, T5, share_embeddings=False, query_residual=True)
BATCH, NEGATIVES, TEMPERATURE = 4, 2, 0.4


@functools.cache
def parameters(module=MODULE):
    tokens = np.ones((1, 4), np.int32)
    first = jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + 0.2 * rng.normal(size=leaf.shape).astype(np.float32), first)


def draw_tokens(random, rows, length=6):
    tokens = random.integers(1, 40, (rows, length)).astype(np.int32)
    return np.where(np.arange(length) < random.integers(2, length + 1, (rows, 1)), tokens, 0)


def draw_batch(queries=BATCH, seed=0, marked=True):
    """Some documents stand in it more than once; the last query is padding."""
    random = np.random.default_rng(seed)
    targets = np.stack([random.integers(start, start + size, queries) for start, size in LEVELS], axis=1)
    targets[-1] = 0
    index = random.integers(0, 9, (queries, 1 + NEGATIVES))
    index[-1] = -1
    batch = {
        "encoder_input_tokens": draw_tokens(random, queries),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32),
        "decoder_target_tokens": targets.astype(np.int32),
        "decoder_loss_weights": (targets != 0).astype(np.float32),
        "document_index": index.reshape(-1).astype(np.int32),
        "document_vectors": random.normal(size=(index.size, 12)).astype(np.float32) * 0.3,
        "relevant_index": random.integers(-1, 9, (queries, 2)).astype(np.int32),
    }
    if marked:
        batch["negative_in_cluster"] = random.random((queries, NEGATIVES)) < 0.5
    return batch


def model_of(**changes):
    settings = {"levels": LEVELS, "normalize": "level", "temperature": TEMPERATURE, "alpha": 1.7, "intra_weight": 0.6}
    return GDRModel(MODULE, **{**settings, **changes})


def query_vectors(params, batch, pooling="mean"):
    tokens = batch["encoder_input_tokens"]
    encoder = {name: params[name] for name in ("token_embedder", "encoder")}
    states = np.asarray(compiled.run(TextEncoder(BERT), encoder, tokens), np.float64)
    if pooling == "cls":
        return states[:, 0]
    counted = (tokens != 0)[..., None]
    return (states * counted).sum(1) / counted.sum(1)


def expected_cid(params, batch):
    """(mean over tokens, share of right ones by level): cross-entropy over each level's block."""
    logits = np.asarray(
        compiled.run(MODULE, params, batch["encoder_input_tokens"], batch["decoder_input_tokens"]), np.float64
    )
    terms, right = [], [[] for _ in LEVELS]
    for row in range(len(logits) - 1):
        for level, (start, size) in enumerate(LEVELS):
            block = logits[row, level, start : start + size]
            target = batch["decoder_target_tokens"][row, level] - start
            terms.append(np.log(np.exp(block).sum()) - block[target])
            right[level].append(block.argmax() == target)
    return np.mean(terms), [np.mean(x) for x in right]


def similarity(queries, documents, kind):
    if kind == "cosine":
        queries, documents = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    products = queries @ documents.T
    return np.tanh(products) if kind == "tanh" else products


def expected_intra(scores, batch, alpha):
    """One number a query, by the formula of the spec, term by term: (loss, is the answer the best)."""
    index, size = batch["document_index"], 1 + NEGATIVES
    losses, best = [], []
    for i in range(len(scores) - 1):
        exp = np.exp(scores[i] / TEMPERATURE)
        own, total, rivals = i * size, alpha * exp[i * size], []
        for j in range(len(index)):
            wrong = index[j] >= 0 and index[j] != index[own] and index[j] not in batch["relevant_index"][i]
            if j == own or not wrong:
                continue
            mine = j // size == i
            near = mine and ("negative_in_cluster" not in batch or batch["negative_in_cluster"][i, j % size - 1])
            total += (alpha if near else 1.0) * exp[j]
            rivals.append(scores[i, j])
        losses.append(-np.log(exp[own]) + np.log(total))
        best.append(scores[i, own] >= max(rivals))
    return np.array(losses), np.array(best)


@pytest.mark.parametrize(
    "kind, pooling, marked", (("tanh", "cls", False), ("cosine", "mean", True), ("dot", "mean", False))
)
def test_the_loss_is_the_formula(kind, pooling, marked):
    params, batch = parameters(), draw_batch(marked=marked)
    model = model_of(similarity=kind, pooling=pooling)
    loss, metrics = jax.jit(model.loss_fn)(params, batch)
    cid, right = expected_cid(params, batch)
    scores = similarity(query_vectors(params, batch, pooling), batch["document_vectors"].astype(np.float64), kind)
    intra, best = expected_intra(scores, batch, alpha=1.7)
    found = model.summarize(metrics)
    assert metrics["weight_sum"] == BATCH - 1
    assert found["loss/cid"] == pytest.approx(cid, rel=1e-4)
    assert found["loss/intra"] == pytest.approx(intra.mean(), rel=1e-3)
    assert found["loss"] == pytest.approx(cid + 0.6 * intra.mean(), rel=1e-3)
    assert float(loss) == pytest.approx(found["loss"] * (BATCH - 1), rel=1e-5)
    assert found["accuracy/match"] == pytest.approx(best.mean())
    for level, share in enumerate(right):
        assert found[f"accuracy/level_{level}"] == pytest.approx(share)


def test_both_parts_teach_the_encoder():
    params, batch = parameters(), draw_batch()
    both = jax.jit(jax.grad(lambda p, b: model_of().loss_fn(p, b)[0]))(params, batch)
    cid = jax.jit(jax.grad(lambda p, b: model_of(intra_weight=0.0).loss_fn(p, b)[0]))(params, batch)

    def size(tree):
        return max(np.abs(x).max() for x in jax.tree.leaves(tree))

    intra = jax.tree.map(np.subtract, both, cid)
    assert size(cid["encoder"]) > 1e-3 and size(intra["encoder"]) > 1e-3
    assert size(cid["decoder"]) > 1e-3 and size(intra["decoder"]) < 1e-6  # documents do not pass the decoder


def test_two_dropout_passes_agree_and_share_the_loss():
    """R-Drop: the loss is the mean of both passes' losses, documents included, plus what their CIDs disagree on."""
    params, batch, key = parameters(), draw_batch(), jax.random.key(3)
    half, whole = (float(jax.jit(model_of(rdrop=r).loss_fn)(params, batch, key)[0]) for r in (0.5, 1.0))
    plain = jax.jit(model_of(rdrop=0.0).loss_fn)
    passes = [float(plain(params, batch, one)[0]) for one in jax.random.split(key)]
    disagreement = 2 * (whole - half)
    assert disagreement > 1e-3 and abs(passes[0] - passes[1]) > 1e-3
    assert whole == pytest.approx(np.mean(passes) + disagreement, rel=1e-4)


TOWER = BiEncoderConfig(encoder=BERT, pooling="cls").tower("document")


@functools.cache
def both_parameters():
    model = model_of(document=TOWER)
    shapes = {"encoder_input_tokens": (2, 6), "decoder_input_tokens": (2, 2)}
    made = jax.jit(lambda key: model.get_initial_variables(key, shapes))(jax.random.key(1))
    assert set(made["params_axes"]["document"]) == set(made["params"]["document"]) == {"token_embedder", "encoder"}
    return {**parameters(), "document": jax.device_get(made["params"]["document"])}


def tokens_batch(queries=BATCH):
    batch = draw_batch(queries)
    del batch["document_vectors"]
    return batch | {"document_tokens": draw_tokens(np.random.default_rng(7), queries * (1 + NEGATIVES))}


def test_stage_two_encodes_the_documents_and_teaches_their_encoder():
    params, batch = both_parameters(), tokens_batch()
    vectors = compiled.run(TOWER, params["document"], batch["document_tokens"])
    frozen = jax.jit(model_of(similarity="cosine").loss_fn)(
        parameters(), batch | {"document_vectors": np.asarray(vectors)}
    )
    model = model_of(similarity="cosine", document=TOWER, chunks=2)
    (loss, metrics), gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, batch)
    assert float(loss) == pytest.approx(float(frozen[0]), rel=1e-5)
    assert model.summarize(metrics)["loss/intra"] == pytest.approx(model.summarize(frozen[1])["loss/intra"], rel=1e-5)
    for name in ("document", "encoder", "decoder"):
        assert max(np.abs(x).max() for x in jax.tree.leaves(gradient[name])) > 1e-3
    assert "document" not in model.decoder(params).params


@pytest.mark.slow
def test_eight_devices_give_the_loss_and_gradient_of_one():
    """With dropout, R-Drop and documents encoded; the negatives of a query are those of all devices."""
    assert jax.device_count() == 8
    model, batch, found = model_of(document=TOWER), tokens_batch(8), []
    for devices in (1, 8):
        mesh = make_mesh(devices)
        with on_mesh(mesh, LOGICAL_AXIS_RULES):
            placed = jax.device_put(batch, batch_sharding(mesh))
            params = jax.device_put(both_parameters(), NamedSharding(mesh, PartitionSpec()))
            loss = jax.jit(jax.value_and_grad(lambda p, b: model.loss_fn(p, b, jax.random.key(5))[0]))
            found.append(jax.device_get(loss(params, placed)))
    (loss, gradient), (other_loss, other_gradient) = found
    assert other_loss == pytest.approx(loss, rel=1e-5)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(gradient))
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "settings, match",
    (
        ({"similarity": "l2"}, "similarity"),
        ({"pooling": "pooler"}, "pooling"),
        ({"temperature": 0.0}, "temperature"),
        ({"alpha": -1.0}, "alpha"),
        ({"intra_weight": -0.1}, "intra_weight"),
        ({"document": BiEncoderConfig(encoder=BERT, projection=5).tower("document")}, "5 wide"),
    ),
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        model_of(**settings)


def test_batches_that_do_not_fit_are_refused():
    params, batch = parameters(), draw_batch()

    def check(model, batch, match):
        with pytest.raises(InputError, match=match):
            jax.eval_shape(model.loss_fn, both_parameters(), batch)

    check(model_of(), tokens_batch(), "without document_vectors")
    check(model_of(document=TOWER), batch, "without document_tokens")
    check(model_of(), batch | {"document_vectors": np.zeros((12, 5), np.float32)}, "5 wide")
    jax.eval_shape(model_of(intra_weight=0.0).loss_fn, params, tokens_batch())  # then no document is looked at
