"""Questions made by rules: natural ones where the grammar is plain, and something useful everywhere else."""

import random
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax.text import english
from gr_jax.text.questions import ask, find_answers, parse, split_clauses
from gr_jax.text.sentences import is_unspaced, split_sentences, word_spans


def questions(sentence, topic="", count=600):
    generator = random.Random(0)
    made = {ask(sentence, topic, generator) for _ in range(count)}
    return {question.rstrip("?").lower() for question in made if question}


@pytest.mark.parametrize(
    ("sentence", "topic", "expected"),
    [
        ("The parliamentary mace is made of silver.", "", "what is the parliamentary mace made of"),
        ("The oil crisis began in October 1973.", "", "when did the oil crisis begin"),
        ("The university has 775 rooms for students.", "", "how many rooms has the university"),
        ("The radio was invented by Guglielmo Marconi.", "", "who was the radio invented by"),
        ("Guglielmo Marconi invented the first radio.", "", "who invented the first radio"),
        ("Levi's Stadium is located in Santa Clara.", "", "where is levi's stadium located"),
        ("Levi's Stadium is located in Santa Clara.", "", "is levi's stadium located in santa clara"),
        ("He moved to New York in 1884.", "Nikola Tesla", "when did nikola tesla move to new york"),
        ("It contains about five percent iron.", "Hematite", "what does hematite contain about five percent"),
        ("The treaty gave Spain the Sinai Peninsula.", "", "which peninsula did the treaty give spain"),
        ("The stadium cost $1.2 billion to build.", "", "how much did the stadium cost to build"),
        (
            "The richest people own 40 percent of all assets.",
            "",
            "what percentage the richest people own of all assets",
        ),
    ],
)
def test_plain_sentences_give_the_question_that_one_would_ask(sentence, topic, expected):
    assert expected in questions(sentence, topic)


def test_the_topic_is_said_where_the_sentence_does_not():
    made = questions("The embargo raised the price of a barrel to twelve dollars.", "1973 oil crisis")
    assert 0.3 < sum("1973 oil crisis" in question for question in made) / len(made) < 0.8


WORDS = "the The is was Rhine flows in 1973 of 12 % $ by and , ; ( it did river quickly created Basel which who -- 3.5"


@hypothesis.given(
    sentence=st.one_of(st.text(max_size=80), st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join)),
    topic=st.sampled_from(["", "Rhine", "The Rhine in Basel"]),
    seed=st.integers(0, 99),
)
def test_any_text_gives_a_question_or_none_from_its_own_words(sentence, topic, seed):
    question = ask(sentence, topic, random.Random(seed))
    assert question == ask(sentence, topic, random.Random(seed))
    if question is None:
        assert not split_clauses(sentence)
        return
    assert question.strip()
    assert len(question.split()) <= 24
    asked = "who what which how many much when where why year percentage is are was were did does do in of for".split()
    known = set(re.findall(r"\w", f"{sentence} {topic} {' '.join(asked)}".lower()))
    # Infinitives may add an "e" or a "y"; everything else comes from somewhere.
    assert set(re.findall(r"\w", question.lower())) <= known | {"e", "y"}


def test_clauses_and_their_parts():
    sentence = "In 1889, the tower was built by Gustave Eiffel, who also designed the bridge; it stands in Paris today."
    clauses = split_clauses(sentence)
    assert clauses[0] == "In 1889 the tower was built by Gustave Eiffel".split()
    clause = parse("However the tower was built by Eiffel".split(), "")
    assert (clause.subject, clause.verb, clause.auxiliary, clause.infinitive) == (["the", "tower"], "was", "was", "")
    clause = parse("it stands in Paris".split(), "Eiffel Tower")
    assert (clause.subject, clause.auxiliary, clause.infinitive) == (["Eiffel", "Tower"], "does", "stand")
    assert parse("it stands in Paris".split(), "") is None
    assert parse("a list of red things".split(), "") is None


def test_answers_have_a_question_word_of_their_type():
    words = "in 1889 by Gustave Eiffel for 3 million francs near Paris with an iron frame".split()
    found = {answer.question: words[answer.start : answer.end] for answer in find_answers(words)}
    assert found["who"] == ["Gustave", "Eiffel"]
    assert found["where"] == ["near", "Paris"]
    assert found["how many francs"] == ["3", "million", "francs"]
    assert found["what"] == ["an", "iron", "frame"]
    assert ["in", "1889"] in found.values()


@pytest.mark.parametrize(
    ("past", "infinitive"),
    [
        ("began", "begin"),
        ("proclaimed", "proclaim"),
        ("located", "locate"),
        ("planned", "plan"),
        ("carried", "carry"),
        ("used", "use"),
        ("agreed", "agree"),
        ("called", "call"),
        ("produced", "produce"),
        ("included", "include"),
        ("joined", "join"),
        ("moved", "move"),
        ("argued", "argue"),
        ("need", None),
        ("red", None),
        ("table", None),
    ],
)
def test_infinitives(past, infinitive):
    assert english.past_lemma(past) == infinitive
    assert english.present_lemma("contains") == "contain" and english.present_lemma("cats") is None


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
        (
            "Mr. Smith met J. R. Jones at 3.5 p.m. today. He left.",
            ["Mr. Smith met J. R. Jones at 3.5 p.m. today.", "He left."],
        ),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("東京は首都です。「そうです。」と言った。", ["東京は首都です。", "「そうです。」", "と言った。"]),
        ("A heading\n\nThe text.", ["A heading", "The text."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@hypothesis.given(text=st.text(st.sampled_from("aB .!?\n\"')。」東1"), max_size=50))
def test_sentences_and_words_lose_nothing(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert "".join(text[start:end] for start, end in word_spans(text)) == "".join(text.split())


def test_scripts_without_spaces():
    assert is_unspaced("東京は日本の首都です。") and is_unspaced("กรุงเทพ")
    assert not is_unspaced("Tokyo (東京) is the capital of Japan") and not is_unspaced("")
    assert [("東京 is big")[a:b] for a, b in word_spans("東京 is big")] == ["東", "京", "is", "big"]
