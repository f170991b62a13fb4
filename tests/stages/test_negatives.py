"""What training of encoders starts from: negatives from a file, and pretrained parameters."""

import gzip

import numpy as np
import pytest

from gr_jax import clustering, systems
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
from gr_jax.models import BertConfig
from gr_jax.stages import encoders, keys, negatives
from gr_jax.stages.pairs import load_pairs
from gr_jax.stages.vectors import load_owner, load_vectors
from gr_jax.training import negatives as tables
from gr_jax.training.negatives import Negatives
from gr_jax.training.token_store import TokenStore
from tests.models import random_folders
from tests.small_dsi import quiet

SHARES = {"file": 0.5, "random": 0.5}
SMALL = systems.Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=32
)


def run(beir, folder, file):
    system = systems.DPR(
        encoders=SMALL,
        pseudo_queries=systems.PseudoQueries(kinds={"title": 1, "sentence": 1}),
        mining=systems.Mining(shares=SHARES, kept=4, file=str(file)),
        training=systems.ContrastiveTraining(held_out=0.1),
        query_training=None,
    )  # fmt: skip
    system.run(beir, folder / "run", shared_dir=folder / "shared", until="negatives", say=quiet)
    (found,) = (folder / "shared").glob("negatives-*")
    (pairs,) = (folder / "shared").glob("pairs-*")
    return found, TokenStore.load(pairs / "queries")


def test_clusters_of_documents_that_have_vectors_of_sentences(beir, tmp_path):
    """A document stands for itself there, and not a sentence of some document."""
    system = systems.DPR(
        encoders=SMALL, mining=systems.Mining(shares={"cluster": 1.0}, kept=4, clusters=3),
        vectors=systems.Vectors(encoder="lsa", passages="sentences"), query_training=None,
    )  # fmt: skip
    system.run(beir, tmp_path / "run", shared_dir=tmp_path, until="negatives", say=quiet)
    folders = {kind: next(tmp_path.glob(f"{kind}-*")) for kind in ("negatives", "pairs", "vectors")}
    found = Negatives.load(folders["negatives"] / "cluster").documents
    owner, targets = load_owner(folders["vectors"]), load_pairs(folders["pairs"])[0].targets
    # Each document's vector stands before those of its sentences.
    own = [np.flatnonzero(owner == document)[0] for document in range(owner.max() + 1)]
    assert len(own) < len(owner)

    def expected(rows):
        groups = clustering.kmeans(load_vectors(folders["vectors"])[rows], 3, seed=0).assignments
        return tables.cluster_negatives(groups, targets, 4, seed=0).documents

    assert (found >= 0).any()
    np.testing.assert_array_equal(found, expected(own))
    assert (found != expected(np.arange(len(own)))).any()  # were sentences taken for documents


def test_negatives_of_a_users_file(beir, tmp_path):
    dataset = read_beir(beir)
    train = dataset.split("train")
    query_id, answers = next(iter(train.items()))
    wrong = [doc_id for doc_id in dataset.corpus.doc_ids if doc_id not in answers][:3]
    other = next(iter(dataset.split("test")))
    file = tmp_path / "negatives.tsv"
    named = [(query_id, doc_id) for doc_id in (*wrong, next(iter(answers)))]
    file.write_text("".join(f"{query}\t{doc_id}\n" for query, doc_id in [*named, (other, wrong[0])]))
    found, queries = run(beir, tmp_path, file)
    table = Negatives.load(found / "file")
    named = table.documents[(table.documents >= 0).any(axis=1)]
    assert len(table) == len(queries) and 1 <= len(named) <= len(answers)
    for row in named:
        assert [dataset.corpus.doc_ids[document] for document in row if document >= 0] == wrong
    mined = systems.Mining(shares=SHARES, kept=4, file=str(file))
    mixed = negatives.mixed(negatives.load_negatives(found, mined), mined)
    assert (mixed.documents >= 0).all()  # random ones fill up
    with open(file, "a") as stream:
        stream.write("nobody d1\n")
    with pytest.raises(InputError, match="no query has this id") as error:
        run(beir, tmp_path / "again", file)
    assert error.value.line == 6


def test_what_the_file_holds_is_in_the_key(tmp_path):
    files = [tmp_path / name for name in ("a", "b", "c.gz")]
    for file, text in zip(files, ("q1 d1\n", "q1 d1\n", "q1 d2\n"), strict=True):
        file.write_bytes(gzip.compress(text.encode()) if file.suffix else text.encode())
    one, same, other = (keys.canonical(systems.Mining(shares=SHARES, file=str(file))) for file in files)
    assert one == same != other
    with pytest.raises(InputError, match="cannot be read"):
        keys.canonical(systems.Mining(shares=SHARES, file=str(tmp_path / "nothing")))
    for wrong in ({"shares": SHARES}, {"file": "a"}):
        with pytest.raises(InputError, match='Mining.shares\\["file"\\]'):
            systems.Mining(**wrong)


def test_every_tower_starts_from_what_is_pretrained_its_pooler_too(tmp_path):
    bert = {**random_folders.BERT, "num_hidden_layers": 1}
    folder = random_folders.write_bert(tmp_path / "bert")
    pooler = {"weight": np.random.default_rng(0).normal(size=(32, 32)), "bias": np.arange(32.0)}
    random_folders.write(
        folder, bert,
        {**random_folders.bert_tensors(bert),
         **{f"pooler.dense.{name}": value.astype(np.float32) for name, value in pooler.items()}},
    )  # fmt: skip
    config, pretrained = encoders.make_encoders(
        systems.Encoders(encoder=str(folder), pooling="pooler", shared=False, projection=5), 101
    )
    assert isinstance(config.encoder, BertConfig)
    params = encoders.initial_parameters(config, pretrained, 0)
    for tower in ("query", "document"):
        np.testing.assert_array_equal(params[tower]["pooler"]["kernel"], pooler["weight"].T.astype(np.float32))
        np.testing.assert_array_equal(params[tower]["pooler"]["bias"], pooler["bias"])
        assert params[tower]["projection"]["wo"]["kernel"].shape == (32, 5)


def test_the_hardest_kind_fills_up_first_whatever_order_they_come_in():
    def table(*rows):
        return Negatives(np.array(rows, np.int32))

    found = {"ance": table([5, 6, 7, 8]), "file": table([1, -1, -1, -1])}
    mined = systems.Mining(shares={"file": 0.5, "ance": 0.5}, kept=4, refresh_every=5, file=__file__)
    assert negatives.mixed(found, mined).documents.tolist() == [[1, 5, 6, 7]]


def test_a_file_alone_keeps_its_teacher_s_scores():
    scores = np.array([[1.0, 0.5]], np.float32)
    alone = Negatives(np.array([[3]], np.int32), teacher_scores=scores)
    mined = systems.Mining(shares={"file": 1.0}, kept=1, file=__file__)
    table = negatives.mixed({"file": alone}, mined)
    assert table is not None and table.teacher_scores is scores
