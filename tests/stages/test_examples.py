"""Which texts are trained on, and which docid each is to lead to."""

import dataclasses

import numpy as np
import pytest

from gr_jax import docids as docids_lib
from gr_jax.corpus import Corpus, Dataset, Document, Qrels, Queries
from gr_jax.docids import Docids
from gr_jax.docids.pseudo_queries import pseudo_queries
from gr_jax.errors import InputError
from gr_jax.models.lsa import latent_semantic_vectors
from gr_jax.stages import documents, examples
from gr_jax.stages.docids import Identifiers, docids_of
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import in_order, stage
from gr_jax.stages.networks import Network
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from gr_jax.stages.vectors import Vectors, passages, vectors_of
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.training.token_store import TokenStore, write_token_store
from tests import small_data

CORPUS = Corpus.from_documents(
    [
        Document(
            "owls", "Owls", "Owls hunt mice at night in forests. Their round eyes cannot move in the head. Quiet."
        ),
        Document("cats", "House cats", "They sleep most of the day on a sofa. At night they hunt mice in the house."),
        Document("eels", "Eels", "Few people know where they spawn."),
    ]
)
DATASET = Dataset(
    CORPUS,
    Queries(
        ("q1", "q2", "q3", "q4", "q5"),
        ("what do owls hunt in forests", "where do they sleep", "can their eyes move", "where do eels spawn", "mice?"),
    ),
    {
        "train": Qrels({"q1": {"owls": 1, "cats": 0}, "q2": {"cats": 2}, "q5": {"owls": 1, "cats": 1}}),
        "dev": Qrels({"q3": {"owls": 1}}),
        "test": Qrels({"q4": {"eels": 1}}),
    },
)
SENTENCES = Vectors(encoder="lsa", passages="sentences")


def named_parts(owner: np.ndarray, num_documents: int) -> tuple[Docids, Docids]:
    """Docids of parts and of their documents, in an order that is not the parts'."""
    order = np.random.default_rng(0).permutation(len(owner))
    named = docids_lib.Docids.build([[2 + o // 4, 10 + o] for o in order], vocab_size=40)
    return named, named.for_documents(owner, num_documents)


@pytest.fixture(scope="module")
def names() -> tuple[examples.Names, Docids, list[str], np.ndarray]:
    parts, owner = passages(DATASET, SENTENCES.sentences)
    named, docids = named_parts(owner, len(CORPUS))
    return examples.Names(docids, named, (parts, owner)), named, list(parts), owner


def docid_of_part(named: Docids, part: int) -> list[int]:
    return named.sequence(int(named.rows_of(part)[0]))


def test_passages_are_the_document_and_its_sentences_under_its_title(names):
    _, _, parts, owner = names
    assert parts == [
        "Owls Owls hunt mice at night in forests. Their round eyes cannot move in the head. Quiet.",
        "Owls Owls hunt mice at night in forests.",
        "Owls Their round eyes cannot move in the head.",  # "Quiet." is too short to be found by
        "House cats They sleep most of the day on a sofa. At night they hunt mice in the house.",
        "House cats They sleep most of the day on a sofa.",
        "House cats At night they hunt mice in the house.",
        "Eels Few people know where they spawn.",  # its one sentence is the document
    ]
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert owner.dtype == np.int32


def test_most_sentences():
    parts, owner = passages(DATASET, dataclasses.replace(SENTENCES, most_sentences=1).sentences)
    assert owner.tolist() == [0, 1, 2]  # with one sentence there is nothing to tell apart
    whole, owner = passages(DATASET, Vectors(encoder="lsa").sentences)
    assert list(whole) == list(DATASET.document_texts()) and owner.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("document", "question", "part"),
    [
        (0, "what do owls hunt in forests", 1),
        (0, "can their EYES move?", 2),
        (0, "owls", 0),  # the title stands in every sentence and decides nothing
        (0, "something else altogether", 0),
        (1, "cats that sleep on a sofa", 4),
        (1, "who hunts mice at night", 5),
        (1, "a house for cats", 4),  # "a", beside the title's words
        (2, "where do eels spawn", 6),
    ],
)
def test_a_question_leads_to_the_sentence_that_shares_most_words_with_it(names, document, question, part):
    chosen, named, _, _ = names
    assert chosen.best(document, question) == docid_of_part(named, part)


def test_the_document_itself_leads_to_the_docid_of_the_whole(names):
    chosen, named, _, owner = names
    assert [chosen.whole(i) for i in range(3)] == [
        docid_of_part(named, int(np.searchsorted(owner, i))) for i in range(3)
    ]


def test_with_one_docid_a_document_there_is_no_choice():
    docids = docids_lib.Docids.build([[7], [3], [5]], vocab_size=8)
    chosen = examples.Names(docids, docids, None)
    assert [chosen.best(i, "owls hunt") for i in range(3)] == [chosen.whole(i) for i in range(3)] == [[7], [3], [5]]


@pytest.mark.parametrize("named_are", ["document", "sentences"])
def test_every_example_leads_to_a_docid_of_a_right_document(named_are):
    parts, owner = passages(DATASET, Vectors(encoder="lsa", passages=named_are).sentences)
    vectors = latent_semantic_vectors(parts, dimension=4)
    named = docids_lib.hierarchical_kmeans(vectors, branching=2, leaf_capacity=2)
    docids = named.for_documents(owner, len(CORPUS))
    made = pseudo_queries(CORPUS, kinds={"title": 1, "sentence": 2, "span": 1}, seed=0)
    chosen = examples.Names(docids, named, (parts, owner) if named_are == "sentences" else None)
    pairs = list(examples.example_pairs(DATASET, chosen, made, document_words=6))

    def right(pair, document: int) -> bool:
        return list(pair.target) in [docids.sequence(int(row)) for row in docids.rows_of(document)]

    queries = [pair for pair in pairs if pair.source == "query"]
    assert [pair.text for pair in queries] == [DATASET.queries.text(q) for q in ("q1", "q2", "q5", "q5")]
    assert all(right(pair, document) for pair, document in zip(queries, [0, 1, 0, 1], strict=True))
    texts = [pair for pair in pairs if pair.source == "document"]
    assert [pair.text for pair in texts] == [
        "Owls Owls hunt mice at night",
        "House cats They sleep most of",
        "Eels Few people know where they",
    ]
    assert all(right(pair, document) for document, pair in enumerate(texts))
    pseudo = [pair for pair in pairs if pair.source == "pseudo"]
    assert [pair.text for pair in pseudo] == list(made.texts) and len(pairs) == len(queries) + 3 + len(pseudo)
    assert all(right(pair, int(document)) for pair, document in zip(pseudo, made.documents, strict=True))
    held_out = {DATASET.queries.text(q) for q in ("q3", "q4")}
    assert not held_out & {pair.text for pair in pairs}


def test_the_transform_is_applied_to_whatever_is_read():
    corpus = Corpus.from_documents(
        [Document("d", "jax.lax.scan", "Scans aCarry over xs. Returns the finalCarry and ys.")]
    )
    dataset = Dataset(
        corpus, Queries(("q",), ("loopBody of scan",)), {"train": Qrels({"q": {"d": 1}})}, transform="split_identifiers"
    )
    parts, _ = passages(dataset, SENTENCES.sentences)
    docids = docids_lib.Docids.build([[2]], vocab_size=3)
    made = pseudo_queries(corpus, kinds={"title": 1}, seed=0)
    pairs = list(examples.example_pairs(dataset, examples.Names(docids, docids, None), made, document_words=50))
    assert [pair.text for pair in pairs] == [
        "loop Body of scan",
        "jax lax scan Scans a Carry over xs. Returns the final Carry and ys.",
        "jax lax scan",
    ]
    assert parts[1:] == ["jax lax scan Scans a Carry over xs.", "jax lax scan Returns the final Carry and ys."]


@stage()
def generated(place, corpus):
    """Queries of a run's own folder, as DSI-QG has them."""
    pseudo_queries(load_dataset(corpus).corpus, kinds={"title": 1}, seed=0).save(place.folder / "pseudo_queries")


def test_finished_examples_are_made_again_from_what_a_system_read(tmp_path):
    """Whatever it calls its stages, and where its own ones lie."""
    corpus = documents.corpus(BeirFolder(str(small_data.write_beir(tmp_path / "mine", count=6))))
    words = vocabulary_of(corpus, Network(encoder="t5", vocabulary="byte")).named("query_vocabulary")
    ids = docids_of(corpus, vectors_of(corpus, SENTENCES), words, Identifiers(branching=2), SENTENCES)
    rows = examples.examples(
        corpus, ids, generated(corpus), words, sentences=SENTENCES.sentences, max_input_length=24, document_words=6
    )
    runner = Runner(tmp_path / "run", say=lambda line: None)
    runner.run(in_order(rows))
    again = examples.finished_examples(runner.folder(rows), runner.model_dir)
    made = write_token_store(tmp_path / "again", again.pairs(), again.features)
    assert made.fingerprint == TokenStore.load(runner.folder(rows) / "tokens").fingerprint
    with pytest.raises(InputError, match="the stage generated .* is not there.*MODEL_DIR"):
        examples.finished_examples(runner.folder(rows))
