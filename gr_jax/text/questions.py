"""Questions made from a sentence by rules: a model that will be asked questions should see some of every document.

A candidate for an answer (a date, a number, a name, a noun phrase, the subject) is taken out and a question word of its
type goes to the front, with subject and auxiliary turned round or do-support where a verb is recognised. What rules
cannot turn into grammar keeps its words: for retrieval the words that a question keeps and the ones that it leaves out
matter more than its grammar.
"""

from __future__ import annotations

import dataclasses
import random
import re

from gr_jax.text import english

_TOKEN = re.compile(r"\d[\d,.]*\d|\d|[^\W\d_]\.(?:[^\W\d_]\.)+|\w+(?:['’.\-–/]\w+)*|[^\w\s]")
_YEAR = re.compile(r"1[0-9]{3}s?|20[0-4][0-9]s?")
_NUMBER = re.compile(r"\d[\d,.]*(?:st|nd|rd|th)?")
_BREAKS = frozenset(';:()—–[]"“”,.?!')
_BREAKING_WORDS = frozenset("which who while but although because whereas when where though if and that".split())
_MIN_CONTENT_WORDS, _MAX_WORDS = 2, 19


@dataclasses.dataclass(frozen=True)
class Clause:
    """Subject, verb, rest.

    Attributes:
      subject: words before the verb.
      verb: the finite verb, as written.
      auxiliary: what goes to the front of a question: the verb itself ("is"), or "did" / "does".
      infinitive: what then stays behind the subject; "" where the verb itself went to the front.
      rest: words after the verb.
    """

    subject: list[str]
    verb: str
    auxiliary: str
    infinitive: str
    rest: list[str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """Words `start:end` of a clause's rest are what is asked for; `question` asks for them."""

    start: int
    end: int
    question: str


def ask(sentence: str, topic: str, rng: random.Random) -> str | None:
    """One question that `sentence` answers; None where no clause of it is long enough.

    Args:
      sentence: English.
      topic: what the text is about, for pronouns and for questions that would not say it; "" where there is none.
      rng: decides which question.
    """
    clauses = split_clauses(sentence)
    if not clauses:
        return None
    weights = [min(len(clause), 15) for clause in clauses]
    for _ in range(4):
        words = rng.choices(clauses, weights)[0]
        question = _ask_clause(words, topic, rng)
        if question:
            question = _thin(question, rng)
            if _num_content_words(question) >= _MIN_CONTENT_WORDS:
                return _write(question, topic, rng)
    return _write(_ask_window(words, rng), topic, rng)


def _ask_clause(words: list[str], topic: str, rng: random.Random) -> list[str] | None:
    style = rng.random()
    clause = parse(words, topic) if style < 0.85 else None
    if clause is None or len(clause.rest) < 2:
        return _ask_window(words, rng)
    if style < 0.15:
        return _ask_subject(clause, rng)
    if style < 0.30:
        return _ask_whether(clause, rng)
    return _ask_answer(clause, rng)


def split_clauses(sentence: str) -> list[list[str]]:
    """The clauses of a sentence as words, without punctuation; those of fewer than four words are joined or dropped."""
    clauses: list[list[str]] = [[]]
    for token in _TOKEN.findall(sentence):
        current = clauses[-1]
        if token in _BREAKS:
            # A short beginning ("In 1973,") belongs to what follows, and so do the members of a list.
            if len(current) >= (6 if token == "," else 4):
                clauses.append([])
        elif token.lower() in _BREAKING_WORDS and (not current or len(current) >= 6):
            if current:
                clauses.append([])
        elif token[0].isalnum() or token in "$€£%":
            current.append(token)
    return [clause for clause in clauses if len(clause) >= 4]


def parse(words: list[str], topic: str) -> Clause | None:
    """Finds the finite verb. Pronouns and missing subjects become the topic; None where there is no plain clause."""
    words = words[1:] if words[0].lower() in english.OPENERS else words
    for place, word in enumerate(words[:12]):
        lower = word.lower()
        before = words[place - 1].lower() if place else ""
        if lower in english.AUXILIARIES:
            # "does the", "has been": the next word is no second finite verb.
            return _clause(words, place, lower, "", topic)
        if place == 0 or before in english.DETERMINERS or before in english.PREPOSITIONS or word[0].isupper():
            continue
        lemma = english.past_lemma(lower)
        if lemma is not None:
            return _clause(words, place, "did", lemma, topic)
        lemma = english.present_lemma(lower)
        if lemma is not None:
            return _clause(words, place, "does", lemma, topic)
    return None


def _clause(words: list[str], place: int, auxiliary: str, infinitive: str, topic: str) -> Clause | None:
    subject, rest = words[:place], words[place + 1 :]
    if len(subject) == 0 or (len(subject) == 1 and subject[0].lower() in english.PRONOUNS):
        if not topic:
            return None
        subject = topic.split()
    elif subject[0].lower() in english.PREPOSITIONS or len(subject) > 8:
        return None
    elif subject[0].lower() in ("his", "her", "its", "their") and topic:
        subject = [*topic.split(), *subject[1:]]
    if auxiliary in ("do", "does", "did") and infinitive == "" and rest:
        infinitive, rest = rest[0], rest[1:]
    return Clause(subject, words[place], auxiliary, infinitive, rest)


def _ask_subject(clause: Clause, rng: random.Random) -> list[str]:
    kind = clause.subject[-1].lower()
    if kind in english.KINDS:
        word = rng.choice((f"which {kind}", f"what {kind}"))
    else:
        word = "who" if _is_person(clause.subject) else "what"
    return [word, clause.verb, *clause.rest[: rng.randint(4, 9)]]


def _ask_whether(clause: Clause, rng: random.Random) -> list[str]:
    tail = clause.rest[: rng.randint(3, 7)]
    return _trim([clause.auxiliary, *clause.subject, *_nonempty(clause.infinitive), *tail])


def _ask_answer(clause: Clause, rng: random.Random) -> list[str] | None:
    answers = find_answers(clause.rest)
    if not answers:
        return None
    answer = rng.choice(answers)
    before, after = clause.rest[: answer.start], clause.rest[answer.end :]
    after = _trim(after[: rng.choice((0, 0, 2, 4, 6))])
    if rng.random() < 0.12:
        return [*clause.subject, clause.verb, *before, answer.question]
    turned = [clause.auxiliary, *clause.subject, *_nonempty(clause.infinitive)]
    return [answer.question, *turned, *before, *after]


def find_answers(words: list[str]) -> list[Answer]:
    """What can be asked for in the words after a verb: dates, numbers, names, noun phrases."""
    answers = []
    place = 0
    while place < len(words):
        word, lower = words[place], words[place].lower()
        before = words[place - 1].lower() if place else ""
        end = place + 1
        if _YEAR.fullmatch(word) or (lower in english.MONTHS and word[0].isupper()):
            while end < len(words) and _NUMBER.fullmatch(words[end]):
                end += 1
            start = place
            while start and (words[start - 1].lower() in english.MONTHS or _NUMBER.fullmatch(words[start - 1])):
                start -= 1
            start -= bool(start) and words[start - 1].lower() in english.PREPOSITIONS
            answers.append(Answer(start, end, "when"))
            if start < place and word[0].isdigit():
                answers.append(Answer(start, end, "what year"))
        elif word in "$€£":
            end = min(place + 3, len(words))
            answers.append(Answer(place, end, "how much"))
        elif _NUMBER.fullmatch(word) or lower in english.NUMBER_WORDS:
            answers.append(_number_answer(words, place))
            end = answers[-1].end
        elif word[0].isupper() and lower not in english.STOP_WORDS:
            while end < len(words) and _continues_name(words, end):
                end += 1
            answers.append(_name_answer(words, place, end, before))
        elif lower not in english.STOP_WORDS and len(word) > 3 and not lower.endswith("ly"):
            while end < len(words) and words[end][0].islower() and words[end].lower() not in english.STOP_WORDS:
                end += 1
            if end - place <= 3:
                start = place - (before in english.DETERMINERS)
                answers.append(Answer(start, end, "what"))
        place = end
    return answers


def _number_answer(words: list[str], place: int) -> Answer:
    end = place + 1
    if end < len(words) and (words[end] == "%" or words[end].lower() in ("percent", "per")):
        return Answer(place, end + 1, "what percentage")
    while end < len(words) and words[end].lower() in english.NUMBER_WORDS:
        end += 1
    noun: list[str] = []
    while (
        end < len(words) and words[end].lower() not in english.STOP_WORDS and len(noun) < 2 and words[end][0].isalpha()
    ):
        noun.append(words[end])
        end += 1
    return Answer(place, end, " ".join(["how many", *noun]))


def _name_answer(words: list[str], start: int, end: int, before: str) -> Answer:
    kind = words[end - 1].lower()
    if kind in english.KINDS and end - start > 1:
        return Answer(start - (before in english.ARTICLES), end, f"which {kind}")
    if before == "by":
        return Answer(start, end, "who")
    if before in english.PLACE_PREPOSITIONS:
        return Answer(start - 1, end, "where")
    article = before in english.DETERMINERS
    person = not article and end - start in (2, 3) and _is_person(words[start:end])
    return Answer(start - article, end, "who" if person else "what")


def _continues_name(words: list[str], place: int) -> bool:
    if words[place][0].isupper():
        return True
    if words[place : place + 2] == ["of", "the"]:
        place += 1
    elif words[place].lower() not in ("of", "de", "van", "von"):
        return False
    return place + 1 < len(words) and words[place + 1][0].isupper()


def _is_person(words: list[str]) -> bool:
    """Whether words look like a person's name: one to three capitalised ones, no article, no kind of thing."""
    return (
        len(words) <= 3
        and all(word[0].isupper() and word.isalpha() and not word.isupper() for word in words)
        and words[-1].lower() not in english.KINDS
    )


def _ask_window(words: list[str], rng: random.Random) -> list[str]:
    """A question word in place of an answer, in a window of five to twelve words around it."""
    answers = find_answers(words)
    width = rng.randint(5, 12)
    if not answers:
        start = rng.randint(0, max(0, len(words) - width))
        return [rng.choice(("what", "how", "why", "what is")), *words[start : start + width]]
    answer = rng.choice(answers)
    left = rng.randint(0, min(width, answer.start))
    right = min(width - left, len(words) - answer.end)
    left = min(width - right, answer.start)
    before, after = words[answer.start - left : answer.start], _trim(words[answer.end : answer.end + right])
    if rng.random() < 0.3:
        return [*before, answer.question, *after]
    return [answer.question, *before, *after]


def _thin(words: list[str], rng: random.Random) -> list[str]:
    """Cut to a question's length, less a few words: people ask with fewer words than texts have, and with others."""
    little, other = rng.choice(((0.0, 0.0), (0.1, 0.1), (0.35, 0.1)))
    tail = words[1:] if len(words) <= _MAX_WORDS else _trim(words[1:_MAX_WORDS])
    rates = (little if word.lower() in english.LITTLE_WORDS else other for word in tail)
    tail = [word for word, rate in zip(tail, rates, strict=True) if rng.random() >= rate]
    return [words[0], *tail]


def _write(words: list[str], topic: str, rng: random.Random) -> str:
    """Says the topic where it is missing, and writes as people do: with a question mark, or all small and without."""
    question = " ".join(words)
    # A question of hardly any content is about everything.
    if topic and (rng.random() < 0.5 or _num_content_words(words) <= _MIN_CONTENT_WORDS):
        known = set(question.lower().split())
        if not any(word in known for word in topic.lower().split() if word not in english.STOP_WORDS):
            joint = rng.choice(("in", "of", "for", ""))
            question = f"{question} {joint} {topic}" if joint else f"{question} {topic}"
    if rng.random() < 0.5:
        return question.lower()
    return f"{question[:1].upper()}{question[1:]}?"


def _num_content_words(words: list[str]) -> int:
    return sum(word.lower() not in english.STOP_WORDS for word in words)


def _trim(words: list[str]) -> list[str]:
    """Without function words at the end, where a cut has left them."""
    end = len(words)
    while end and words[end - 1].lower() in english.STOP_WORDS:
        end -= 1
    return words[:end]


def _nonempty(word: str) -> list[str]:
    return [word] if word else []
