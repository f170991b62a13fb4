"""CGR on a few documents: its vocabulary, what it learns, pages of several documents, and what does not fit."""

import dataclasses
import shutil
from typing import Any

import numpy as np
import pytest

import gr_jax
from benchmarks import small_systems
from gr_jax import corpus as corpus_lib
from gr_jax import retrievers
from gr_jax.corpus import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.contextual_states import states_in_context
from gr_jax.models.copying_ids import CopyingDecoder
from gr_jax.models.text_encoder import TextEncoder
from gr_jax.stages import pretrained
from gr_jax.stages.docids import load_docids
from gr_jax.stages.networks import Network
from gr_jax.stages.write_docids import Training
from gr_jax.systems.cgr import CGR, Contextual, TitleDecoding
from gr_jax.systems.cgr import vocabulary as reading
from gr_jax.systems.cgr.vocabulary import load_table, load_text_of, load_titles
from gr_jax.text import ByteVocabulary, HuggingFaceVocabulary
from tests import compiled, small_data
from tests.models import random_folders
from tests.systems import one_setting

COUNT = 24
TITLE = 20  # bytes of a title
AS_PUBLISHED: dict[str, Any] = {"normalize": "vocabulary", "length_penalty": 0.0, "lookahead": False}


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """24 documents; the last is a second one of the first one's page."""
    folder = small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=COUNT)
    rows = small_data.documents(COUNT)
    rows[-1]["title"] = rows[0]["title"]
    small_data.write_jsonl(folder / "corpus.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return random_folders.write_bert(
        tmp_path_factory.mktemp("encoder") / "bert", vocab_size=264, max_position_embeddings=128
    )


def cgr(encoder, **changes) -> CGR:
    given = {
        "contextual": Contextual(encoder=str(encoder), clusters=2, length=96, title_tokens=TITLE),
        "network": Network(
            encoder="t5", vocabulary="byte", width=32, heads=2, mlp_width=32, encoder_layers=1, decoder_layers=1,
            dropout=0.0, outputs="random",
        ),
        "training": Training(
            steps=150, batch_size=16, learning_rate=1e-2, warmup_steps=5, rates={"query": 1.0}, normalize="vocabulary",
            evaluate_every=None, dev_queries=None, checkpoint_every=50, multipliers={"decoder": 1.0}, keep_best=None,
        ),
        "decoding": TitleDecoding(beams=8, **AS_PUBLISHED),
    }  # fmt: skip
    return CGR(**{**given, **changes})


@pytest.fixture(scope="module")
def made(beir, encoder, tmp_path_factory):
    pytest.importorskip("bm25s")
    pytest.importorskip("Stemmer")
    folder = tmp_path_factory.mktemp("cgr") / "run"
    return folder, cgr(encoder).run(beir, folder, until="index", say=lambda line: None)


def vocabulary(made):
    """The folder of the decoder's vocabulary."""
    return next((made[0].parent / "shared").glob("contextual_vocabulary-*"))


def test_every_title_is_its_own_ids_read_back(made, beir):
    folder, words = vocabulary(made), ByteVocabulary()
    titles, written, text_of = load_titles(folder), load_docids(folder), load_text_of(folder)
    dataset = corpus_lib.read_beir(beir)
    assert len(titles) == len(written) == COUNT - 1  # two documents are one page
    for document, title in enumerate(dataset.corpus.titles):
        (row,) = written.rows_of(document)
        tokens = text_of[written.sequence(int(row))] - titles.meta["shift"]
        assert words.decode(tokens.tolist()) == title
    # Rows of the table: of every token at most two, then the end; id 0 and what fills up the table have none.
    counts = np.bincount(titles.tokens[titles.tokens > 0], minlength=titles.vocab_size)
    used = text_of[text_of >= 0]
    assert used.tolist() == [*np.repeat(np.arange(len(counts)), np.minimum(counts, 2)), titles.eos_id]
    norms = np.linalg.norm(load_table(folder), axis=1)
    np.testing.assert_allclose(norms, text_of >= 0, atol=1e-5)
    assert len(text_of) % 8 == 0


@pytest.mark.parametrize("clusters", [2, None])
def test_an_id_is_what_the_encoder_made_of_its_tokens(clusters, beir, encoder, tmp_path):
    """Each row is the mean of the states of its tokens, and each token has the nearest of its text's."""
    contextual = dataclasses.replace(cgr(encoder).contextual, clusters=clusters)
    cgr(encoder, contextual=contextual).run(
        beir, tmp_path / "run", until="contextual_vocabulary", say=lambda line: None
    )
    (folder,) = (tmp_path / "shared").glob("contextual_vocabulary-*")
    words, titles, written = ByteVocabulary(), load_titles(folder), load_docids(folder)
    text_of, table, texts = load_text_of(folder), load_table(folder), corpus_lib.read_beir(beir).corpus.texts
    config, params = pretrained.load_stack(str(encoder), 0.0)
    states: dict[int, list[np.ndarray]] = {}
    for row in range(len(titles)):
        documents = titles.documents_of(row).tolist()
        assert documents == ([0, COUNT - 1] if 0 in documents else documents[:1])
        front = [token - titles.meta["shift"] for token in titles.sequence(row)]
        text = words.encode(" ".join(texts[one] for one in documents))
        read = [*words.prefix, *front, *text][: 96 - len(words.suffix)] + list(words.suffix)
        rows = np.pad(np.array([read], np.int32), ((0, 0), (0, 96 - len(read))))
        whole = np.asarray(compiled.run(TextEncoder(config), params, rows))[0, len(words.prefix) :]
        (own,) = written.rows_of(documents[0])
        for target, state in zip(written.sequence(int(own)), whole, strict=False):
            states.setdefault(target, []).append(state)
    assert sorted(states) == np.flatnonzero((text_of >= 0) & (text_of != titles.eos_id)).tolist()
    means = {target: np.mean(own, axis=0) for target, own in states.items()}
    for target, mean in means.items():
        np.testing.assert_allclose(table[target], mean / np.linalg.norm(mean), atol=1e-4)
        same = [one for one in means if text_of[one] == text_of[target]]
        for state in states[target]:
            nearest = min(np.linalg.norm(state - means[one]) for one in same)
            assert np.linalg.norm(state - mean) <= nearest + 1e-3
    assert (clusters is None) == all(len(own) == 1 for own in states.values())


def test_an_interrupted_reading_goes_on(beir, encoder, tmp_path, monkeypatch):
    read = []

    def some(*arguments, **settings):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(len(arguments[2]))
        return states_in_context(*arguments, **settings)

    def run():
        cgr(encoder).run(beir, tmp_path / "run", until="contextual_vocabulary", say=lambda line: None)

    monkeypatch.setattr(reading, "_BLOCK", 9)
    monkeypatch.setattr(reading, "states_in_context", some)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(
        reading, "states_in_context", lambda *a, **s: read.append(len(a[2])) or states_in_context(*a, **s)
    )
    run()
    assert read == [9, 9, 5]
    monkeypatch.undo()
    (folder,) = (tmp_path / "shared").glob("contextual_vocabulary-*")
    cgr(encoder).run(beir, tmp_path / "whole" / "run", until="contextual_vocabulary", say=lambda line: None)
    (whole,) = (tmp_path / "whole" / "shared").glob("contextual_vocabulary-*")
    np.testing.assert_allclose(load_table(folder), load_table(whole), atol=1e-5)


def test_it_finds_what_it_was_trained_on(made, beir):
    dataset, searcher = corpus_lib.read_beir(beir), made[1]
    train = dataset.split_queries("train")
    found = searcher.retrieve(train.texts, 2).doc_index
    right = [dataset.corpus.index_of(next(iter(dataset.split("train")[one]))) for one in train.ids]
    assert np.mean(np.any(found == np.array(right)[:, None], axis=1)) > 0.9
    again = gr_jax.load(made[0] / "index")
    np.testing.assert_array_equal(again.retrieve(train.texts, 2).doc_index, found)


@pytest.mark.slow
def test_its_report(made, beir, encoder):
    cgr(encoder).run(beir, made[0], say=lambda line: None)
    assert "trie over all titles" in (made[0] / "results" / "report.md").read_text()


@pytest.mark.parametrize("multipliers", [None, pytest.param({"encoder": 0.5}, marks=pytest.mark.slow)])
def test_the_matrix_stays_as_it_was_built(multipliers, made, beir, encoder, tmp_path):
    model = made[0] / "model"
    if multipliers:
        short = dataclasses.replace(cgr(encoder).training, steps=6, multipliers=multipliers, dev_queries=None)
        cgr(encoder, training=short).run(beir, tmp_path / "run", until="model", say=lambda line: None)
        model = tmp_path / "run" / "model"
    _, params = network_folder.load_network(model)
    table = load_table(vocabulary(made))
    assert not np.asarray(params["decoder"]["logits_dense"]["kernel"])[:, 0].any()
    given = np.any(table != 0, axis=1)
    rows = np.asarray(params["decoder"]["logits_dense"]["kernel"]).T
    np.testing.assert_allclose(rows[given], table[given] / Network().temperature, rtol=1e-5)
    inputs = np.asarray(params["decoder_token_embedder"]["embedding"])[given]
    np.testing.assert_allclose(
        inputs / np.linalg.norm(inputs, axis=1, keepdims=True), table[given], atol=1e-5
    )  # read as they are written


@pytest.mark.parametrize("merge", ["sum", *(pytest.param(merge, marks=pytest.mark.slow) for merge in (None, "max"))])
def test_ways_to_write_a_title(merge, encoder, tmp_path):
    """With room for every way a title has the best of them, or with "sum" their sum, as written out and scored."""
    folder = small_data.write_beir(tmp_path / "few", count=3)
    rows = [{**row, "title": title} for row, title in zip(small_data.documents(3), ("ab", "ba", "aab"), strict=True)]
    small_data.write_jsonl(folder / "corpus.jsonl", rows)
    decoding = TitleDecoding(beams=64, merge=merge, **AS_PUBLISHED)
    system = cgr(encoder, training=None, decoding=decoding)
    made = system.run(folder, tmp_path / "run", until="index", say=lambda line: None)
    retriever: Any = made.retriever
    questions = ["where is ab", "who saw aab"]
    ways, owner = small_systems.every_way(retriever)
    assert len(ways) == 2 * 2 + 2 * 2 + 2 * 2 * 2
    forced = small_systems.teacher_forced(retriever, questions, ways)
    found = retriever.retrieve(questions, 3)
    for log_probs, documents, scores in zip(forced, found.doc_index, found.score, strict=True):
        for document, score in zip(documents.tolist(), scores.tolist(), strict=True):
            (row,) = retriever.docids.rows_of(document)
            own = log_probs[np.array(owner) == int(row)]
            assert score == pytest.approx(np.logaddexp.reduce(own) if merge == "sum" else own.max(), abs=1e-4)


def test_genre_writes_the_vanilla_vocabulary(beir, encoder, tmp_path):
    contextual = Contextual(encoder=str(encoder), vanilla=True, title_tokens=TITLE)
    system = cgr(encoder, contextual=contextual, training=None)
    system.run(beir, tmp_path / "run", until="contextual_vocabulary", say=lambda line: None)
    folder = next((tmp_path / "shared").glob("contextual_vocabulary-*"))
    text_of, titles = load_text_of(folder), load_titles(folder)
    assert text_of[: titles.vocab_size].tolist() == [-1, *range(1, titles.vocab_size)]
    assert (text_of[titles.vocab_size :] == -1).all()
    np.testing.assert_array_equal(load_docids(folder).tokens, titles.tokens)
    embeddings = pretrained.load_stack(str(encoder), 0.0)[1]["token_embedder"]["embedding"]
    own = embeddings[5 - titles.meta["shift"]]
    np.testing.assert_allclose(load_table(folder)[5], own / np.linalg.norm(own), atol=1e-5)


def test_what_does_not_fit(beir, encoder, tmp_path):
    quiet = {"say": lambda line: None}
    system = cgr(encoder)
    with pytest.raises(InputError, match=r"do not fit Training\.row_targets"):
        dataclasses.replace(system, training=dataclasses.replace(system.training, row_targets=TITLE))
    with pytest.raises(InputError, match="no levels"):
        dataclasses.replace(system, training=dataclasses.replace(system.training, normalize="level"))
    with pytest.raises(InputError, match=r"Set Contextual\.length to 26"):
        Contextual(title_tokens=24, length=25)
    with pytest.raises(InputError, match=r"Contextual\.clusters"):
        Contextual(clusters=0)
    with pytest.raises(InputError, match='Leave Network.outputs at "random"'):
        cgr(encoder, network=dataclasses.replace(system.network, outputs="centroid"))
    with pytest.raises(InputError, match="tokens that their encoder does not know"):
        cgr(encoder, contextual=Contextual(title_tokens=TITLE))
    wide = cgr(encoder, network=dataclasses.replace(system.network, width=64))
    with pytest.raises(InputError, match="vectors are 32 wide, and its features 64"):
        wide.run(beir, tmp_path / "wide", until="model", **quiet)
    few = random_folders.write_bert(tmp_path / "few", vocab_size=100)
    contextual = dataclasses.replace(system.contextual, encoder=str(few))
    with pytest.raises(InputError, match="their encoder reads 100"):
        cgr(few, contextual=contextual).run(beir, tmp_path / "few_words", until="model", **quiet)
    unasked = small_data.write_beir(tmp_path / "unasked", count=COUNT, queries=False)
    with pytest.raises(InputError, match="CGR learns from training questions"):
        system.run(unasked, tmp_path / "unasked_run", **quiet)


def test_copying_is_counted_on_training_questions(beir, encoder, tmp_path):
    """Where the encoder's table has more rows than there are words."""
    system = cgr(
        encoder, network=Network(encoder=str(encoder), vocabulary="byte", outputs="random", width=32, heads=2,
        mlp_width=32, decoder_layers=1), training=None, copying=True,
    )  # fmt: skip
    searcher = system.run(beir, tmp_path / "run", until="index", say=lambda line: None)
    network = searcher.retriever.model
    assert isinstance(network, CopyingDecoder)
    dataset, words = corpus_lib.read_beir(beir), ByteVocabulary()
    titles = load_titles(next((tmp_path / "shared").glob("contextual_vocabulary-*")))
    of_titles = [set(titles.sequence(row)) for row in range(len(titles))]
    asked, copied = np.zeros(264), np.zeros(264)
    for query_id, grades in dataset.split("train").items():
        own = set(words.encode(dataset.queries.text(query_id)))
        row = int(titles.rows_of(dataset.corpus.index_of(next(iter(grades))))[0])
        for token in own:
            asked[token] += 1
            copied[token] += token + titles.meta["shift"] in of_titles[row]
    share = copied.sum() / asked.sum()
    for token in np.flatnonzero(asked):
        rate = (copied[token] + 5 * share) / (asked[token] + 5)
        chance = (sum(token + titles.meta["shift"] in one for one in of_titles) + 1) / (len(titles) + 1)
        assert network.params["copy_token"][token] == pytest.approx(np.log(rate / chance), abs=1e-5)
    assert not np.asarray(network.params["id_bias"]).any()


def test_other_weights_are_read_anew(beir, encoder, tmp_path):
    """An encoder's states are known by what it holds, and not by where it lies."""
    copied = tmp_path / "encoder"
    shutil.copytree(encoder, copied)
    keys = [one_setting.stages(cgr(folder))["title_states"].key for folder in (encoder, copied)]
    random_folders.write_bert(copied, vocab_size=264, max_position_embeddings=120)
    assert keys[0] == keys[1] != one_setting.stages(cgr(copied))["title_states"].key


@pytest.mark.slow  # as the next one shows, with a new token; and tests/retrievers/test_generative_parts.py
def test_documents_come_and_go_without_training(beir, encoder, tmp_path):
    """A further document of a page is found with it; one without title goes by its first words."""
    made = cgr(encoder, training=None).run(beir, tmp_path / "run", until="index", say=lambda line: None)
    corpus, retriever = made.corpus, made.retriever
    letters = {letter for title in corpus.titles for letter in title}
    known = "".join(sorted(letter for letter in letters if letter.isalpha()))[:6]
    more = Corpus.from_documents(
        [Document("again", corpus.titles[3], "More of it."), Document("nameless", "", f"{known} {known}")]
    )
    made.update(add=more)
    again, nameless = COUNT, COUNT + 1
    (row,) = retriever.docids.rows_of(again).tolist()
    assert retriever.docids.documents_of(row).tolist() == [3, again]
    assert retriever.docids.name(int(retriever.docids.rows_of(nameless)[0])) == f"{known} {known}"
    found = retriever.retrieve(["anything"], COUNT + 2).doc_index[0].tolist()
    assert {again, nameless} <= set(found) and abs(found.index(again) - found.index(3)) == 1
    assert retriever.num_documents == COUNT + 2
    made.update(remove=[corpus.doc_ids[3]])
    found = retriever.retrieve(["anything"], COUNT + 2).doc_index[0].tolist()
    assert again in found and 3 not in found


@pytest.mark.parametrize("copying", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_title_with_a_new_token_is_written_with_what_the_encoder_makes_of_it(copying, beir, encoder, tmp_path):
    network = Network(
        encoder=str(encoder), vocabulary="byte", outputs="random", width=32, heads=2, mlp_width=32, decoder_layers=1
    )
    decoding = TitleDecoding(beams=64)  # sums of logits do not depend on how many ids there are
    system = cgr(encoder, network=network, training=None, copying=copying, decoding=decoding)
    made = system.run(beir, tmp_path / "run", until="index", say=lambda line: None)
    retriever: Any = made.retriever
    before, size = retriever.retrieve(["anything", "a red cat"], 5), retriever.model.output_vocab_size
    letters = {letter for title in made.corpus.titles for letter in title}
    unknown = [letter for letter in "QXZ%&+@#" if letter not in letters][:2]
    title = f"{unknown[0]}{unknown[1]}{unknown[0]}"
    known = "".join(sorted(letter for letter in letters if letter.isalpha()))[:6]
    more = Corpus.from_documents(
        [
            Document("new", title, "What it says."),
            Document("old", made.corpus.titles[2], ""),
            Document("nameless", "", known),
        ]
    )
    made.update(add=more)
    # A further document of a page is found with it; one without title goes by its first words.
    (row,) = retriever.docids.rows_of(COUNT + 1).tolist()
    assert retriever.docids.documents_of(row).tolist() == [2, COUNT + 1]
    assert retriever.docids.name(int(retriever.docids.rows_of(COUNT + 2)[0])) == known
    grown, words = retriever.model, ByteVocabulary()
    assert grown.output_vocab_size == size + 8 and (np.asarray(retriever.constraint.text_of) >= 0)[size:].sum() == 2
    front = words.encode(title)
    read = np.array([[*words.prefix, *front, *words.encode("What it says."), *words.suffix]], np.int32)
    params = {name: grown.params[name] for name in ("token_embedder", "encoder")}
    states = np.asarray(compiled.run(TextEncoder(grown.module.encoder_config), params, read))[0]
    states = states[len(words.prefix) :][:3] / np.linalg.norm(states[len(words.prefix) :][:3], axis=1, keepdims=True)
    kernel = np.asarray(grown.params["decoder"]["logits_dense"]["kernel"]).T
    shift = retriever.docids.meta["shift"]
    for letter, mean in ((unknown[0], (states[0] + states[2]) / 2), (unknown[1], states[1])):
        (row,) = np.flatnonzero(np.asarray(retriever.constraint.text_of) == words.encode(letter)[0] + shift)
        expected = mean / np.linalg.norm(mean) / network.temperature
        np.testing.assert_allclose(kernel[row], expected, atol=1e-4 / network.temperature)
    # It is found, what was there is found as before, and all of it again when the index is opened anew.
    questions = ["anything", "a red cat"]
    found = retriever.retrieve(questions, COUNT + 3)
    assert (found.doc_index == COUNT).any(axis=1).all()
    for own, scores, old, old_scores in zip(found.doc_index, found.score, before.doc_index, before.score, strict=True):
        for document, score in zip(old.tolist(), old_scores.tolist(), strict=True):
            assert scores[own.tolist().index(document)] == pytest.approx(score, abs=1e-4)
    retrievers.index.save(tmp_path / "again", retriever, made.corpus)
    again = gr_jax.load(tmp_path / "again")
    np.testing.assert_array_equal(again.retrieve(questions, 5).doc_index, found.doc_index[:, :5])


@pytest.mark.slow
def test_a_title_that_no_vector_can_write_is_named(beir, encoder, tmp_path):
    """Where the decoder is narrower than the encoder's states; nothing is changed then."""
    network = dataclasses.replace(cgr(encoder).network, encoder=str(encoder), width=16, heads=2)
    made = cgr(encoder, network=network, training=None).run(beir, tmp_path / "run", until="index", say=lambda _: None)
    unknown = next(letter for letter in "QXZ%&+@#" if not any(letter in title for title in made.corpus.titles))
    with pytest.raises(InputError, match=f"document 'other' has a token that stood in no title.*{unknown}"):
        made.update(add=Corpus.from_documents([Document("other", unknown, "text")]))
    assert made.retriever.num_documents == COUNT


def test_a_document_without_title_and_text_is_named(beir, encoder, tmp_path):
    folder = small_data.write_beir(tmp_path / "few", count=4)
    rows = small_data.documents(4)
    rows[2] |= {"title": "", "text": ""}
    small_data.write_jsonl(folder / "corpus.jsonl", rows)
    with pytest.raises(InputError, match=f"{rows[2]['_id']!r} has neither title nor text"):
        cgr(encoder, training=None).run(folder, tmp_path / "run", until="index", say=lambda line: None)


def test_an_encoder_of_another_tokenizer_is_refused(tmp_path):
    """As large as the one that cuts titles, and with the same words in another order."""
    tokenizers = pytest.importorskip("tokenizers")
    special, made = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], []
    for order in (1, -1):
        letters = [chr(ord("a") + place) for place in range(26)][::order]
        words = {word: place for place, word in enumerate([*special, *letters])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
        tokenizer.add_special_tokens(special)
        folder = random_folders.write_bert(tmp_path / f"bert{order}", vocab_size=30, max_position_embeddings=64)
        tokenizer.save(str(folder / "tokenizer.json"))
        made.append(folder)
    words = HuggingFaceVocabulary(made[0] / "tokenizer.json")
    assert reading._encoder(str(made[0]), words)[0].vocab_size == 30
    with pytest.raises(InputError, match="another"):
        reading._encoder(str(made[1]), words)


def test_pseudo_queries_that_nobody_makes(encoder):
    system = cgr(encoder)
    with pytest.raises(InputError, match="PseudoQueries.kinds"):
        dataclasses.replace(system, training=dataclasses.replace(system.training, rates={"query": 0.5, "pseudo": 0.5}))
