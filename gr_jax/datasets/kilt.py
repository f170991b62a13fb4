"""KILT's knowledge source with the questions of one of its tasks (Petroni et al. 2021)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gr_jax.corpus import kilt, kilt_pages, lines
from gr_jax.corpus.records import Place
from gr_jax.datasets import folder, raw

VERSION = "kilt 1"
PAGES = ("kilt_knowledgesource.json", "kilt_knowledgesource.jsonl")
# Task → the stems of its files, for train and for dev; some have no train. Test sets have no evidence.
TASKS: Mapping[str, Mapping[str, str]] = {
    "nq": {"train": "nq-train", "dev": "nq-dev"},
    "triviaqa": {"train": "triviaqa-train_id", "dev": "triviaqa-dev_id"},
    "hotpotqa": {"train": "hotpotqa-train", "dev": "hotpotqa-dev"},
    "eli5": {"train": "eli5-train", "dev": "eli5-dev"},
    "fever": {"train": "fever-train", "dev": "fever-dev"},
    "aidayago2": {"train": "aidayago2-train", "dev": "aidayago2-dev"},
    "wned": {"dev": "wned-dev"},
    "cweb": {"dev": "cweb-dev"},
    "trex": {"train": "trex-train", "dev": "trex-dev"},
    "structured_zeroshot": {"train": "structured_zeroshot-train", "dev": "structured_zeroshot-dev"},
    "wow": {"train": "wow-train", "dev": "wow-dev"},
}
# TriviaQA's licence keeps its questions out of KILT's files.
TRIVIAQA = ("unfiltered-web-*.json", "triviaqa-unfiltered*.json")
BLEU_ABOVE = 0.5  # of evidence to train with, as GENRE has it
WITHOUT_EVIDENCE = "questions without evidence, which were left out"
WITHOUT_PAGE = "pieces of evidence on pages that are not there, which were left out"
WITHOUT_ANY_PAGE = "questions whose evidence is on no page that is there, which were left out"


def page_line(line: str, at: Place) -> tuple[bytes, tuple[str, ...]]:
    """See `convert.Make`."""
    return folder.document_line(kilt_pages.page(lines.parse_json(line, at.file, at.number), at))


def raw_files(where: pathlib.Path, task: str) -> dict[str, list[pathlib.Path]]:
    """ "pages", the splits, and for TriviaQA "questions" → its raw files.

    Raises:
      InputError: one is missing.
    """
    found = {"pages": [raw.one(where, "the knowledge source", PAGES)]}
    for split, stem in TASKS[task].items():
        found[split] = [raw.one(where, f"the file of {split}", [f"{stem}-kilt.jsonl"])]
    if task == "triviaqa":
        found["questions"] = raw.find(where, "the file with TriviaQA's own questions", TRIVIAQA)
    return found


def build(
    where: pathlib.Path, output: pathlib.Path, task: str, *, processes: int = 1, show: bool = True
) -> folder.About:
    """Writes the pages, and the questions whose evidence is known.

    A question is called by its key; where that is not its id, the id stands in its metadata.

    Args:
      where: the raw files, anywhere below it.
      output: folder to write; a build that was interrupted goes on where it was.
      task: of `TASKS`.
      processes: that read pages.
      show: bars.

    Raises:
      InputError: a raw file is missing or damaged, or the folder holds something else.
    """
    files = raw_files(where, task)
    with folder.building(output, "kilt", task):
        return _build(files, output, task, processes, show)


def _build(
    files: Mapping[str, Sequence[pathlib.Path]], output: pathlib.Path, task: str, processes: int, show: bool
) -> folder.About:
    notes = folder.write_documents(output, files["pages"][0], page_line, VERSION, processes, show)
    notes |= dict.fromkeys((WITHOUT_EVIDENCE, WITHOUT_PAGE, WITHOUT_ANY_PAGE), 0)
    there = folder.identity_of(output, show)
    texts = _own_texts(files["questions"]) if "questions" in files else None
    judged: dict[str, list[tuple[str, str, int]]] = {}

    def asked() -> Iterator[tuple[pathlib.Path, str, str, Mapping]]:
        for split in TASKS[task]:
            rows = judged.setdefault(split, [])
            for question in kilt.read_kilt(files[split][0], texts):
                wanted = question.pages(BLEU_ABOVE if split == "train" else None)
                pages = [page for page in wanted if page in there.ids]
                notes[WITHOUT_PAGE] += len(wanted) - len(pages)
                if not pages:
                    notes[WITHOUT_ANY_PAGE if wanted else WITHOUT_EVIDENCE] += 1
                    continue
                rows += [(question.key, page, 1) for page in pages]
                more: dict[str, Any] = {} if question.key == question.id else {"id": question.id}
                more["answers"] = [one.answer for one in question.outputs if one.answer]
                more["evidence"] = [sorted(pages) for pages in question.evidence()]
                yield files[split][0], question.key, question.text, more

    notes |= folder.write_questions(output, asked())
    return folder.finish(
        output, dataset="kilt", variant=task, whose="KILT (Petroni et al. 2021), GENRE's rule for evidence of train",
        questions=folder.write_judgements(output, judged), raw=[file for some in files.values() for file in some],
        notes=notes, settings={"version": VERSION, "bleu_above": BLEU_ABOVE}, identity=there,
        show=show,
    )  # fmt: skip


def _own_texts(files: Sequence[pathlib.Path]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for file in files:
        texts |= kilt.read_triviaqa(file)
    return texts
