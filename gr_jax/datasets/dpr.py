"""DPR's Wikipedia in passages of 100 words, with questions of NQ or TriviaQA (Karpukhin et al. 2020)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence

from gr_jax.corpus import dpr_files
from gr_jax.corpus.documents import check_id
from gr_jax.corpus.records import Place
from gr_jax.datasets import folder, raw
from gr_jax.errors import InputError

VERSION = "dpr 1"
PASSAGES = ("psgs_w100.tsv",)
# Variant → what its files are called.
VARIANTS: Mapping[str, str] = {"nq": "nq", "trivia": "trivia"}
WITHOUT_PASSAGE = "questions of train and dev without a positive passage, which were left out"


def passage_line(line: str, at: Place) -> tuple[bytes, tuple[str, ...]]:
    """See `convert.Make`."""
    found = dpr_files.passage(line, at)
    if found is None:
        return b"", ()
    problem = check_id(found.doc_id, "passage")
    if problem:
        raise at.error(problem, "Write id<TAB>text<TAB>title.", found.doc_id)
    return folder.document_line(found)


def raw_files(where: pathlib.Path, variant: str) -> dict[str, list[pathlib.Path]]:
    """ "passages", "train", "dev" and, where they are there, the questions of "test" → its raw files.

    Raises:
      InputError: one of the first three is missing.
    """
    name = VARIANTS[variant]
    found = {"passages": [raw.one(where, "the file of passages", PASSAGES)]}
    for split in ("train", "dev"):
        found[split] = [raw.one(where, f"the pairs of {split}", [f"biencoder-{name}-{split}.json"])]
    test = raw.find_if_any(where, [f"{name}-test.qa.csv", f"{name}-test.csv"])
    return {**found, "test": test} if test else found


def build(
    where: pathlib.Path, output: pathlib.Path, variant: str, *, processes: int = 1, show: bool = True
) -> folder.About:
    """Writes the passages, and questions with their positive passages: the first, with which DPR trains, has grade 2,
    others 1.

    Questions of test have answers and no judgements: `evaluation.answer_match` measures on them.

    Args:
      where: the raw files, anywhere below it.
      output: folder to write; a build that was interrupted goes on where it was.
      variant: of `VARIANTS`.
      processes: that read passages.
      show: bars.

    Raises:
      InputError: a raw file is missing or damaged, a positive is no passage, or the folder holds something else.
    """
    files = raw_files(where, variant)
    with folder.building(output, "dpr", variant):
        return _build(files, output, variant, processes, show)


def _build(
    files: Mapping[str, Sequence[pathlib.Path]], output: pathlib.Path, variant: str, processes: int, show: bool
) -> folder.About:
    notes = folder.write_documents(output, files["passages"][0], passage_line, VERSION, processes, show)
    notes[WITHOUT_PASSAGE] = 0
    judged: dict[str, list[tuple[str, str, int]]] = {}

    def asked() -> Iterator[tuple[pathlib.Path, str, str, Mapping]]:
        for split in ("train", "dev"):
            rows = judged.setdefault(split, [])
            for number, one in enumerate(dpr_files.read_examples(files[split][0])):
                if not one.positives:
                    notes[WITHOUT_PASSAGE] += 1
                    continue
                identifier = f"{split}{number}"
                for passage in dict.fromkeys(positive.doc_id for positive in one.positives):
                    problem = check_id(passage, "positive passage")
                    if problem:
                        raise InputError(
                            f"{problem}, of the question {one.question!r}", "Give every passage its passage_id.",
                            file=files[split][0], value=passage or None,
                        )  # fmt: skip
                    rows.append((identifier, passage, 2 if passage == one.positives[0].doc_id else 1))
                yield files[split][0], identifier, one.question, {"answers": list(one.answers)}
        for file in files.get("test", []):
            for number, (question, answers) in enumerate(dpr_files.read_questions(file)):
                yield file, f"test{number}", question, {"answers": list(answers), "split": "test"}

    notes |= folder.write_questions(output, asked())
    return folder.finish(
        output, dataset="dpr", variant=variant, whose="DPR (Karpukhin et al. 2020) and what follows it",
        questions=folder.write_judgements(output, judged), raw=[file for some in files.values() for file in some],
        notes=notes, settings={"version": VERSION}, show=show,
        judged_by={split: files[split][0] for split in judged},
    )  # fmt: skip
