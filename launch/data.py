r"""Builds the papers' data sets from the official raw files: folders that every system reads.

  gr-jax data list                          what can be built, and how
  gr-jax data describe nq320k               its variants, and whose each is
  gr-jax data build nq320k --raw=~/nq --output=data/nq320k --variant=nci
  gr-jax data verify nq320k --raw=~/nq      raw files beside the published checksums
  gr-jax data verify data/nq320k            a built folder beside what it was
  gr-jax data sample nq320k --output=data/sample

  gr-jax data build ir_datasets:beir/nfcorpus/test --output=data/nfcorpus

A build that was interrupted goes on where it was. A sample is a made-up one, which takes seconds: raw files of the
published form in OUTPUT/raw, and what is built of them in OUTPUT/built. A folder says in about.json what it is; a
system takes it as --gin.CORPUS=\"data/nq320k\". What ir_datasets knows is built by its id.
"""

from __future__ import annotations

import os
import pathlib
import textwrap
from collections.abc import Sequence

from absl import flags

from gr_jax import storage
from gr_jax.datasets import KINDS, About, folder, ir_catalogue, kind, raw, workers
from gr_jax.datasets.kinds import beside_published
from gr_jax.errors import InputError

from . import program

SAMPLE = "sample.json"  # stands in a folder whose raw files are made up
COMMANDS = ("list", "describe", "build", "verify", "sample")
# Of each command, the flags of which it makes something.
_USED = {
    "list": (),
    "describe": (),
    "build": ("raw", "output", "variant", "processes"),
    "build ir_datasets:ID": ("output",),
    "verify": ("raw", "variant"),
    "verify FOLDER": (),
    "sample": ("output", "variant"),
}
USAGE = (
    "Write list, describe NAME, build NAME --raw=FOLDER --output=FOLDER, verify NAME --raw=FOLDER, verify FOLDER or "
    "sample NAME --output=FOLDER."
)


def show_all() -> None:
    """A line for each data set."""
    for name, one in KINDS.items():
        print(f"{name}: {one.about}")
    print(f"{ir_catalogue.PREFIX}ID: any data set of ir_datasets.")


def describe(name: str) -> None:
    """What it is made of, and its variants."""
    one = kind(name)
    print(f"{name}: {one.about}")
    print(textwrap.fill(f"raw files: {one.raw}", 100))
    for variant, said in one.variants.items():
        documents = "" if said.documents is None else f", {said.documents:,} documents"
        print(f"  --variant={variant:<20}{said.whose}{documents}")


def variant_of(name: str) -> str:
    """The one that is asked for, or the usual one; InputError where there is none of this name."""
    variants = kind(name).variants
    variant = flags.FLAGS.variant or next(iter(variants))
    if variant not in variants:
        known = ", ".join(variants)
        raise InputError(f"{name} has no such variant", f"Name one of: {known}.", value=variant)
    return variant


def build(name: str) -> None:
    """Builds it, and says what it is beside what was published."""
    output = _folder("output")
    workers.return_large_blocks()
    if name.startswith(ir_catalogue.PREFIX):
        report(ir_catalogue.build(name.removeprefix(ir_catalogue.PREFIX), output), output)
        return
    one, where = kind(name), _folder("raw", there=True)
    report(one.build(where, output, variant_of(name), flags.FLAGS.processes, True), output)


def report(about: About, output: pathlib.Path) -> None:
    """What was built."""
    print(f"This is {about.dataset} ({about.variant}): {about.whose}.")
    counted = ", ".join(f"{split} {count:,}" for split, count in about.questions.items())
    print(f"{about.documents:,} documents ({about.fingerprint}), questions: {counted or 'none'}")
    for line in beside_published(about):
        print(line)
    for what, count in about.notes.items():
        if count:
            print(f"{count:,} {what}")
    print(f'A system takes it as --gin.CORPUS=\\"{output}\\"')


def verify(name: str) -> None:
    """Raw files beside the published checksums, or a built folder beside what it was."""
    if name in KINDS:
        one, where = KINDS[name], _folder("raw", there=True)
        files = [file for some in one.raw_files(where, variant_of(name)).values() for file in some]
        said = raw.verify(files)
        for file, what in said.items():
            print(f"{file}: {what}")
        if any(what.startswith("DIFFERS") for what in said.values()):
            raise InputError("raw files are not as they were published", "Copy them again.", file=where)
        return
    wrong = folder.verify(name)
    for line in wrong:
        print(line)
    if wrong:
        raise InputError("the folder is not as it was built", "Build it again.", file=name)
    about = About.load(name)
    print(f"{name}: {about.dataset} ({about.variant}), as it was built; documents {about.fingerprint}")


def sample(name: str) -> None:
    """Writes made-up raw files, and builds them."""
    one, output, variant = kind(name), _folder("output"), variant_of(name)
    if name != "nq320k" and variant != next(iter(one.variants)):
        raise InputError("a sample is of the usual variant", "Leave --variant out.", value=variant)
    with storage.explaining(output):
        output.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in output.iterdir())
    if names and SAMPLE not in names:
        raise InputError("this folder holds something else", "Name a new folder.", file=output, value=names[0])
    storage.write_json(output / SAMPLE, {"dataset": name})
    one.sample(output / "raw")
    report(one.build(output / "raw", output / "built", variant, 1, False), output / "built")


def _folder(flag: str, *, there: bool = False) -> pathlib.Path:
    given = getattr(flags.FLAGS, flag)
    if not given:
        what = "Raw files are read from a folder" if flag == "raw" else "What is built is written into a folder"
        raise InputError(f"{what[0].lower()}{what[1:]}", f"Give --{flag}.")
    found = pathlib.Path(given).expanduser()
    if there and not found.is_dir():
        raise InputError("no such folder of raw files", "Name the folder that holds them.", file=os.fspath(found))
    return found


def main(words: Sequence[str]) -> None:
    command, names = (words[0] if words else ""), words[1:]
    if command not in COMMANDS or len(names) != (command != "list"):
        raise InputError("not a command of gr-jax data", USAGE, value=" ".join(words))
    case = command
    if command == "build" and names[0].startswith(ir_catalogue.PREFIX):
        case = "build ir_datasets:ID"
    elif command == "verify" and names[0] not in KINDS:
        case = "verify FOLDER"
    program.refuse_unused([name for name in _USED["build"] if name not in _USED[case]], f"by {case}")
    if command == "list":
        show_all()
    else:
        {"describe": describe, "build": build, "verify": verify, "sample": sample}[command](names[0])


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    flags.DEFINE_string("raw", None, "Folder of the raw files.")
    flags.DEFINE_string("output", None, "Folder to build.")
    flags.DEFINE_string("variant", None, "Which of the collections of this name; see describe.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Processes that read records.", lower_bound=1)
    program.run(main)
