import collections
import itertools
import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import BertConfig, BiEncoderConfig, EncoderDecoder, T5Config
from gr_jax.systems.gdr.batches import GDRBatches
from gr_jax.systems.gdr.model import GDRModel
from gr_jax.training import Task, TrainSettings, adamw, train
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.negatives import cluster_negatives, mix, random_negatives
from gr_jax.training.packing import count_examples
from gr_jax.training.token_store import TokenStore

DOCUMENTS, WIDTH = 12, 12
LEVELS = ((2, 3), (5, 2))
# Cluster c is called (2 + c // 2, 5 + c % 2); document n is in cluster n // 2, document 0 also in clusters 1 and 5.
CIDS = np.array([[2 + c // 2, 5 + c % 2] for c in range(6)])
MEMBERS = [*((n, n // 2) for n in range(DOCUMENTS)), (0, 1), (0, 5)]
CLUSTERS = Docids.build(
    CIDS[[c for _, c in MEMBERS]], documents=[n for n, _ in MEMBERS], vocab_size=7, levels=LEVELS, duplicates="share"
)  # fmt: skip
VECTORS = np.random.default_rng(9).normal(size=(DOCUMENTS, WIDTH)).astype(np.float16)


def stores(seed=0, queries=20, several=False, equal=False):
    """Query n begins with the token n + 1 and has words of its answer; all of them differ."""
    random = np.random.default_rng(seed)
    texts = [random.integers(1, 40, 6) for _ in range(DOCUMENTS)]
    if equal:
        texts[-1] = texts[0]
    answers = [random.choice(DOCUMENTS, random.integers(1, 3 if several else 2), replace=False) for _ in range(queries)]
    asked = ({"inputs": [n + 1, *random.permutation(texts[a[0]])[:3]], "targets": a} for n, a in enumerate(answers))
    documents = TokenStore.from_rows({"inputs": text, "targets": [0]} for text in texts)
    return TokenStore.from_rows(asked), documents


def contrastive(seed=0, *, several=False, equal=False, **settings):
    settings = {"batch_size": 4, "query_lengths": 4, "document_lengths": 6, "num_negatives": 1, **settings}
    settings = {"document_positions": True, **settings}
    return ContrastiveBatches(*stores(seed, several=several, equal=equal), seed=seed, **settings)


def cids_of(document):
    return {tuple(CIDS[c].tolist()) for n, c in MEMBERS if n == document}


@given(st.integers(0, 200), st.booleans(), st.booleans(), st.sampled_from([1, 3]))
def test_batches_are_those_inside_with_cids_and_vectors(seed, several, equal, size):
    settings = {"several": several, "equal": equal, "epochs": 1, "batch_size": 8, "num_negatives": size - 1}
    inside = contrastive(seed, **settings)
    batches = GDRBatches(contrastive(seed, document_tokens=False, **settings), CLUSTERS, VECTORS)
    shapes = batches.input_shapes
    assert next(iter(shapes)) == "encoder_input_tokens"
    own = contrastive(seed, document_tokens=False, **settings)
    for expected, found, batch in itertools.zip_longest(inside, own, batches):
        new = {"encoder_input_tokens", "document_vectors"} | ({"negative_in_cluster"} if size > 1 else set())
        new |= {f"decoder_{name}" for name in ("input_tokens", "target_tokens", "loss_weights")}
        assert batch.keys() == new | (expected.keys() - {"query_tokens", "document_tokens", "document_position"})
        for name in expected.keys() & batch.keys():
            np.testing.assert_array_equal(batch[name], expected[name])
        assert {name: batch[name].shape for name in shapes} == shapes
        np.testing.assert_array_equal(batch["encoder_input_tokens"], expected["query_tokens"])
        for position, vector in zip(found["document_position"], batch["document_vectors"], strict=True):
            np.testing.assert_array_equal(vector, VECTORS[position] if position >= 0 else np.zeros(WIDTH))
        assert batch["document_vectors"].dtype == np.float32
        answers = found["document_position"][::size]
        for i, answer in enumerate(answers.tolist()):
            target = tuple(batch["decoder_target_tokens"][i].tolist())
            assert target in cids_of(answer) if answer >= 0 else target == (0, 0)
            assert batch["decoder_input_tokens"][i].tolist() == [0, target[0]]
            assert batch["decoder_loss_weights"][i].tolist() == [float(answer >= 0)] * 2
        assert count_examples(batch) == (answers >= 0).sum()


@given(st.integers(0, 200))
def test_documents_are_read_as_tokens_where_there_are_no_vectors(seed):
    """The first document and the last have equal tokens, and each its own clusters."""
    batches = GDRBatches(contrastive(seed, equal=True), CLUSTERS)
    batch, inside = next(iter(batches)), next(iter(contrastive(seed, equal=True)))
    np.testing.assert_array_equal(batch["document_tokens"], inside["document_tokens"])
    for target, answer in zip(batch["decoder_target_tokens"], inside["document_position"][::2], strict=True):
        assert tuple(target.tolist()) in cids_of(answer)
    assert "document_vectors" not in batch and "document_vectors" not in batches.input_shapes
    with pytest.raises(InputError, match="either vectors or tokens"):
        GDRBatches(contrastive(), CLUSTERS, VECTORS)
    with pytest.raises(InputError, match="positions in any case"):
        GDRBatches(contrastive(document_positions=False), CLUSTERS)


@pytest.mark.parametrize(("shares", "every"), [({"cluster": 1.0}, True), ({"cluster": 1.0, "random": 0.0}, False)])
def test_all_of_the_cluster_is_among_the_negatives_where_nothing_fills_its_list(shares, every):
    """Documents 2n and 2n + 1 are a cluster: its one negative is drawn, or one of a list of eight."""
    queries, _ = stores()
    cluster_of = np.arange(DOCUMENTS) // 2
    sources = {
        "cluster": cluster_negatives(cluster_of, queries.targets, 8),
        "random": random_negatives(queries.targets, DOCUMENTS, 8),
    }
    table = mix({name: sources[name] for name in shares}, shares, 8)
    drawn = []
    for batch in itertools.islice(contrastive(negatives=table, num_negatives=4), 40):
        answer, *negatives = batch["document_index"].reshape(-1, 5).T
        inside = np.stack([cluster_of[negative] == cluster_of[answer] for negative in negatives], axis=1)
        drawn += inside.sum(axis=1).tolist()
    assert (set(drawn) == {1}) if every else (set(drawn) == {0, 1} and 0.35 < np.mean(drawn) < 0.65)


@pytest.mark.parametrize("listed", [0, 2, 6])
def test_negatives_of_the_answers_clusters_are_known_wherever_they_were_found(listed):
    """Listed ones and those that chance puts where a list is short; documents may be in several clusters."""
    queries, _ = stores()
    table = random_negatives(queries.targets, DOCUMENTS, listed)
    settings = {"negatives": table, "num_negatives": 6, "epochs": 3, "document_tokens": False}
    seen = set()
    for batch, found in zip(
        GDRBatches(contrastive(5, **settings), CLUSTERS, VECTORS), contrastive(5, **settings), strict=True
    ):
        groups = found["document_position"].reshape(len(batch["negative_in_cluster"]), -1)
        for (answer, *negatives), inside in zip(groups.tolist(), batch["negative_in_cluster"], strict=True):
            own = cids_of(answer) if answer >= 0 else set()
            expected = [n >= 0 and bool(own & cids_of(n)) for n in negatives]
            assert inside.tolist() == expected
            seen |= set(expected)
    assert seen == {False, True}


def test_one_of_several_cids_is_drawn_anew_for_every_batch():
    drawn = collections.Counter()
    for batch in GDRBatches(contrastive(3, epochs=60, document_tokens=False), CLUSTERS, VECTORS):
        for answer, target in zip(batch["document_index"][::2], batch["decoder_target_tokens"], strict=True):
            if answer == 0:
                drawn[tuple(target.tolist())] += 1
    assert set(drawn) == cids_of(0)
    assert min(drawn.values()) > 0.15 * sum(drawn.values())


def test_cids_of_several_lengths_end_in_eos():
    sequences = [[2] if n < 4 else [3, 2 + n % 2] for n in range(DOCUMENTS)]
    clusters = Docids.build(sequences, vocab_size=5, eos_id=1, duplicates="share")
    seen = set()
    for batch in GDRBatches(contrastive(epochs=2, document_tokens=False), clusters, VECTORS):
        for i, answer in enumerate(batch["document_index"][::2].tolist()):
            target = [] if answer < 0 else [*sequences[answer], 1]
            padded = target + [0] * (3 - len(target))
            assert batch["decoder_target_tokens"][i].tolist() == padded
            assert batch["decoder_input_tokens"][i].tolist() == [0, *padded[:2]]
            assert batch["decoder_loss_weights"][i].tolist() == [float(token != 0) for token in padded]
            seen.add(len(target))
    assert seen == {2, 3}


@given(st.integers(0, 200), st.integers(0, 4))
def test_going_on_from_a_state_gives_the_same_batches(seed, stop):
    dataset = GDRBatches(contrastive(seed, document_tokens=False), CLUSTERS, VECTORS)
    iterator = iter(dataset)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    expected = [next(iterator) for _ in range(3)]
    resumed = iter(dataset)
    resumed.set_state(state)
    for batch in expected:
        again = next(resumed)
        assert batch.keys() == again.keys()
        assert all(np.array_equal(batch[name], again[name]) for name in batch)


def test_processes_together_read_the_batches_of_one():
    whole = iter(GDRBatches(contrastive(5, document_tokens=False), CLUSTERS, VECTORS))
    parts = [
        iter(GDRBatches(contrastive(5, document_tokens=False, process=(i, 2)), CLUSTERS, VECTORS)) for i in range(2)
    ]
    for _ in range(8):
        expected, pieces = next(whole), [next(part) for part in parts]
        for name, value in expected.items():
            np.testing.assert_array_equal(value, np.concatenate([piece[name] for piece in pieces]))


def test_settings_tell_other_clusters_and_vectors():
    other = Docids.build(CIDS[np.arange(DOCUMENTS) % 6], vocab_size=7, levels=LEVELS, duplicates="share")
    changed = VECTORS.copy()
    changed[5] += 1
    made = [(CLUSTERS, VECTORS), (CLUSTERS, None), (other, VECTORS), (CLUSTERS, changed)]
    batches = [GDRBatches(contrastive(document_tokens=parts[1] is None), *parts) for parts in made]
    assert len({json.dumps(one.settings) for one in batches}) == 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="vectors of 11"):
        GDRBatches(contrastive(document_tokens=False), CLUSTERS, VECTORS[:-1])
    few = Docids.build(CIDS[:3], vocab_size=7, documents=[0, 1, 2], num_documents=DOCUMENTS)
    with pytest.raises(InputError, match="in no cluster"):
        GDRBatches(contrastive(document_tokens=False), few, VECTORS)
    with pytest.raises(InputError, match="clusters of 3"):
        GDRBatches(contrastive(document_tokens=False), Docids.build(CIDS[:3], vocab_size=7), VECTORS)
    with pytest.raises(InputError, match="either vectors or tokens"):
        GDRBatches(contrastive(document_tokens=False), CLUSTERS)


@pytest.mark.slow
def test_training_in_both_stages():
    """Frozen vectors first, then the documents' encoder with them: the loss of a batch falls in each."""
    bert = BertConfig(vocab_size=40, emb_dim=WIDTH, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=8)
    t5 = T5Config(vocab_size=8, emb_dim=8, num_heads=2, head_dim=4, num_decoder_layers=1, mlp_dim=12)
    queries, documents = stores(queries=32)
    cluster_of = np.arange(DOCUMENTS) // 2
    drawn = cluster_negatives(cluster_of, queries.targets, 1)
    common = {"batch_size": 8, "negatives": drawn, "query_lengths": 4, "document_lengths": 6}
    settings = {"levels": LEVELS, "normalize": "level", "alpha": 1.5, "similarity": "cosine", "temperature": 0.2}
    module = EncoderDecoder(bert, t5, share_embeddings=False)
    tower = BiEncoderConfig(encoder=bert).tower("document")
    one = GDRBatches(ContrastiveBatches(queries, documents, **common, document_tokens=False), CLUSTERS, VECTORS)
    two = GDRBatches(ContrastiveBatches(queries, documents, **common, document_positions=True), CLUSTERS)
    params = None
    for model, batches in ((GDRModel(module, **settings), one), (GDRModel(module, document=tower, **settings), two)):
        score, batch, ends = jax.jit(model.eval_fn), next(iter(batches)), []

        def evaluate(params, step, score=score, batch=batch, ends=ends, model=model):
            ends.append(model.summarize(score(params, batch)[1]))
            return {}

        task = Task(model, batches, initial_params=params, evaluate=evaluate)
        result = train(task, TrainSettings(steps=12, optimizer=adamw(1e-2), evaluate_first=True))
        params = result.params
        for name in ("loss", "loss/cid", "loss/intra"):
            assert ends[-1][name] < 0.95 * ends[0][name], name
    assert set(params) == {"token_embedder", "encoder", "decoder", "decoder_token_embedder", "document"}
