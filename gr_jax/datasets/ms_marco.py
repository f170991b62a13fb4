"""MS MARCO's passages, with the questions of train and dev and of TREC's Deep Learning tracks of 2019 and 2020."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from gr_jax.corpus import lines, ms_marco
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.records import Place
from gr_jax.corpus.trec import Qrels, read_qrels
from gr_jax.datasets import folder, raw
from gr_jax.errors import InputError

VERSION = "ms_marco 1"
COLLECTION = ("collection.tsv",)
# Split → its questions and judgements, by the names under which they are published. Tracks' grades of 2 and 3 are
# relevant where a measure knows two grades alone.
SPLITS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("queries.train.tsv",), ("qrels.train.tsv",)),
    "dev": (("queries.dev.small.tsv", "queries.dev.tsv"), ("qrels.dev.small.tsv",)),
    "dl19": (
        ("msmarco-test2019-queries.tsv", "topics.dl19-passage.txt"),
        ("2019qrels-pass.txt", "qrels.dl19-passage.txt"),
    ),
    "dl20": (("msmarco-test2020-queries.tsv", "topics.dl20.txt"), ("2020qrels-pass.txt", "qrels.dl20-passage.txt")),
}
REQUIRED = ("train", "dev")
REPEATED = "judgements of a pair that was judged before, of which the later counts"
WITHOUT_JUDGEMENT = "questions without a judgement, which were left out"


def passage_line(line: str, at: Place) -> tuple[bytes, tuple[str, ...]]:
    """See `convert.Make`."""
    return folder.document_line(ms_marco.passage(line, at))


def raw_files(where: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """ "collection", or a split → its raw files.

    Raises:
      InputError: the collection, train or dev is missing, or a track's questions are there without its judgements.
    """
    found = {"collection": [raw.one(where, "the collection", COLLECTION)]}
    for split, (questions, judgements) in SPLITS.items():
        there = [bool(raw.find_if_any(where, patterns)) for patterns in (questions, judgements)]
        if split in REQUIRED or any(there):
            found[split] = [
                raw.one(where, f"the questions of {split}", questions),
                raw.one(where, f"the judgements of {split}", judgements),
            ]
    return found


def _questions(file: pathlib.Path) -> Queries:
    """Those of a file of ids and texts; a file without tabs would be read as texts alone."""
    number, line = next(lines.read_lines(file), (1, ""))
    if "\t" not in line:
        raise InputError("no id and question", "Write id<TAB>text.", file=file, line=number, value=line)
    return Queries.load(file)


def build(where: pathlib.Path, output: pathlib.Path, *, processes: int = 1, show: bool = True) -> folder.About:
    """Writes the passages, and the questions that have judgements.

    Args:
      where: the raw files, anywhere below it.
      output: folder to write; a build that was interrupted goes on where it was.
      processes: that read passages.
      show: bars.

    Raises:
      InputError: a raw file is missing or damaged, a judgement is of a question that is not there, or the folder holds
        something else.
    """
    files = raw_files(where)
    with folder.building(output, "ms_marco", "passages"):
        return _build(files, output, processes, show)


def _build(
    files: Mapping[str, Sequence[pathlib.Path]], output: pathlib.Path, processes: int, show: bool
) -> folder.About:
    notes = folder.write_documents(output, files["collection"][0], passage_line, VERSION, processes, show)
    asked: list[tuple[pathlib.Path, str, str, Mapping]] = []
    judged: dict[str, list[tuple[str, str, int]]] = {}
    left = repeated = 0
    for split in (one for one in SPLITS if one in files):
        queries, rows = _questions(files[split][0]), list(read_qrels(files[split][1]))
        qrels = Qrels.from_rows(files[split][1], rows)
        repeated += len(rows) - qrels.num_pairs
        missing = next((query for query in qrels if query not in queries), None)
        if missing is not None:
            raise InputError(
                "a judgement of a question that is not there", f"Take the judgements of {files[split][0].name}.",
                file=files[split][1], value=missing,
            )  # fmt: skip
        asked += [(files[split][0], query, queries.text(query), {}) for query in queries.ids if query in qrels]
        judged[split] = [(query, page, grade) for query, grades in qrels.items() for page, grade in grades.items()]
        left += len(queries) - len(qrels)
    notes |= folder.write_questions(output, asked)
    return folder.finish(
        output, dataset="ms_marco", variant="passages", whose="MS MARCO passage ranking, and TREC Deep Learning",
        questions=folder.write_judgements(output, judged), raw=[file for some in files.values() for file in some],
        notes={**notes, WITHOUT_JUDGEMENT: left, REPEATED: repeated}, settings={"version": VERSION},
        judged_by={split: files[split][1] for split in judged}, show=show,
    )  # fmt: skip
