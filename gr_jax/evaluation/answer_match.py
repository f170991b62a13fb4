"""Whether a passage holds an answer: DPR's measure (Karpukhin et al. 2020, arXiv 2004.04906, section 5).

A passage answers a question where the words of one of its answers stand there in a row. Words are compared without
regard to case, and in Unicode's decomposed form.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from gr_jax import storage
from gr_jax.corpus.documents import Corpus
from gr_jax.errors import InputError
from gr_jax.evaluation.metrics import Evaluation

CUTOFFS = (1, 5, 20, 100)
_WORD, _SPACE, _CONTROL = "LNM", "Z", "C"  # general categories of characters


def words(text: str) -> list[str]:
    """Runs of letters, numbers and marks, and every other character but spaces and control characters by itself; in
    lower case, decomposed (NFD)."""
    found: list[str] = []
    within = False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in _WORD and within:
            found[-1] += character
        elif kind not in (_SPACE, _CONTROL):
            found.append(character)
        within = kind in _WORD
    return [word.lower() for word in found]


def has_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether the words of any of the answers stand in a text, one behind the other.

    Args:
      text: of a passage.
      answers: an answer without a word stands nowhere.
    """
    passage = words(text)
    for answer in answers:
        wanted = words(answer)
        starts = range(len(passage) - len(wanted) + 1) if wanted else ()
        if any(passage[start : start + len(wanted)] == wanted for start in starts):
            return True
    return False


def answer_hits(
    run: Mapping[str, Sequence[tuple[str, float]]],
    answers: Mapping[str, Sequence[str]],
    texts: Mapping[str, str],
    cutoffs: Sequence[int] = CUTOFFS,
) -> Evaluation:
    """The share of questions with an answer in one of the first k passages, "hits@k"; a question without results has
    none.

    Args:
      run: query id → [(passage id, score)], best first.
      answers: query id → answers, of the questions that are judged.
      texts: passage id → text.
      cutoffs: ranks k.

    Raises:
      InputError: no question has answers, a passage without a text, or a cutoff below 1.
    """
    if not answers:
        raise InputError("no question has answers, so that nothing can be judged", "Give answers of one at least.")
    for k in cutoffs:
        if k < 1:
            raise InputError("hits need a rank", "Give k ≥ 1.", value=k)
    deepest, firsts = max(cutoffs), []
    for query_id, right in answers.items():
        first = deepest
        for rank, (passage, _) in enumerate(list(run.get(query_id, ()))[:deepest]):
            if passage not in texts:
                raise InputError("a passage has no text", "Give the text of all that was found.", value=passage)
            if has_answer(texts[passage], right):
                first = rank
                break
        firsts.append(first)
    per_query = {f"hits@{k}": (np.array(firsts) < k).astype(float) for k in cutoffs}
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, tuple(answers), per_query)


def write_found(
    file: str | os.PathLike,
    questions: Sequence[tuple[str, str, Sequence[str]]],
    run: Mapping[str, Sequence[tuple[str, float]]],
    corpus: Corpus,
    k: int = 100,
) -> None:
    """Writes what was found as DPR's readers take it: each question with its answers and passages, and whether each
    holds an answer.

    Args:
      file: to write, whole or not at all.
      questions: (id, text, answers).
      run: id → [(passage id, score)], best first.
      corpus: of the passages.
      k: passages of each question at most.

    Raises:
      InputError: a passage that is not in the corpus, or k < 1.
    """
    if k < 1:
        raise InputError("k is how many passages to write", "Give 1 or more.", value=k)
    records = []
    for identifier, question, answers in questions:
        contexts = []
        for passage, score in list(run.get(identifier, ()))[:k]:
            document = corpus[corpus.index_of(passage)]
            contexts.append(
                {
                    "id": passage,
                    "title": document.title,
                    "text": document.text,
                    "score": str(score),
                    "has_answer": has_answer(document.text, answers),
                }
            )
        records.append({"question": question, "answers": list(answers), "ctxs": contexts})
    storage.write_json(file, records)
