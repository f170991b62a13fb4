"""Files of predictions, as KILT's `eval_retrieval.py` reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gr_jax.corpus import lines
from gr_jax.corpus.documents import Corpus
from gr_jax.corpus.kilt import Question, check_key, output_of
from gr_jax.corpus.records import Place
from gr_jax.errors import InputError


def write_predictions(
    file: str | os.PathLike,
    questions: Iterable[Question],
    run: Mapping[str, Sequence[tuple[str, float]]],
    corpus: Corpus,
    k: int = 100,
) -> None:
    """Writes answers as KILT's `eval_retrieval.py` reads them: the same ids in the same order, one output each.

    Args:
      file: to write, whole or not at all.
      questions: of the task.
      run: `Question.key` → [(wikipedia_id, score)], best first. A question without answers gets an empty provenance.
      corpus: of the pages, whose titles are written.
      k: pages of each question at most.

    Raises:
      InputError: a page that is not in the corpus, or k < 1.
    """
    if k < 1:
        raise InputError("k is how many pages to write", "Give 1 or more.", value=k)

    def records() -> Iterator[str]:
        for question in questions:
            found = []
            for page, score in list(run.get(question.key, ()))[:k]:
                title = corpus[corpus.index_of(page)].title
                found.append({"wikipedia_id": page, "title": title, "score": float(score)})
            record = {"id": question.id, "input": question.text, "output": [{"provenance": found}]}
            yield json.dumps(record, ensure_ascii=False)

    lines.write_lines(file, records())


def read_predictions(file: str | os.PathLike, key: str = "wikipedia_id") -> dict[str, list[str]]:
    """id → pages, best first, of a file of predictions.

    Args:
      file: one JSON object a line, each with exactly one output that has a provenance.
      key: "wikipedia_id" or "title".

    Raises:
      InputError: a line that is not such a record, or an id that comes twice.
    """
    check_key(key)
    found: dict[str, list[str]] = {}
    for number, record in lines.read_json_lines(file):
        at = Place(file, number)
        identifier = at.identifier(record)
        if identifier in found:
            raise at.error("this id came before", "Give every question one line.", identifier)
        outputs = [
            one for one in (output_of(each, at) for each in at.objects(record, "output")) if one.provenance is not None
        ]
        if len(outputs) != 1:
            raise at.error(f"{len(outputs)} outputs with a provenance", "Give exactly one.", identifier)
        pieces = [getattr(piece, key).strip() for piece in outputs[0].provenance or ()]
        found[identifier] = [one for one in pieces if one]
    return found
