"""What a number rests on: data, settings, code, machine. Every report and every recorded benchmark row carries it."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from gr_jax.evaluation.processor import processor

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a report's numbers rest on. Nothing has a default but what is found out here: a report cannot forget it.

    Attributes:
      corpus: the data set's name and fingerprint, or `Dataset.fingerprint`.
      split: which queries were answered.
      duplicate_rule: what was done with equal documents and with documents that share a docid.
      pseudo_queries: pseudo-queries per document that were trained on.
      constraint: what could be generated ("trie", "none", …).
      normalizer: over what next-token probabilities were normalised.
      seeds: of everything random.
      commit: of the code; "+changes" where the checkout differs from it.
      hardware: `hardware_line()`.
    """

    corpus: str | Mapping[str, Any]
    split: str | Sequence[str]
    duplicate_rule: str
    pseudo_queries: float | str
    constraint: str
    normalizer: str
    seeds: Sequence[int]
    commit: str = dataclasses.field(default_factory=lambda: _commit())
    hardware: str = dataclasses.field(default_factory=lambda: _hardware())

    def lines(self) -> list[tuple[str, str]]:
        """(name, value) in the order in which reports print them."""
        return [
            ("corpus", _describe_corpus(self.corpus)),
            ("split", self.split if isinstance(self.split, str) else ", ".join(self.split)),
            ("duplicate rule", self.duplicate_rule),
            ("pseudo-queries per document", str(self.pseudo_queries)),
            ("constraint", self.constraint),
            ("normaliser", self.normalizer),
            ("seeds", ", ".join(map(str, self.seeds)) or "none: nothing is random"),
            ("commit", self.commit),
            ("hardware", self.hardware),
        ]


def commit(ignore: Sequence[str] = ()) -> str:
    """The commit of the checkout that this code runs from.

    Args:
      ignore: paths in it whose changes do not count, such as the results being written.

    Returns:
      Twelve hex digits, with "+changes" where tracked files differ from it; "release X" outside a checkout.
    """
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        import gr_jax

        return f"release {getattr(gr_jax, '__version__', 'unknown')}"
    counted = [".", *(f":(exclude){path}" for path in ignore)]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *counted)
    return head + ("+changes" if changed else "")


@functools.cache
def hardware_line() -> str:
    """CPU with its generation and width of vectors, cores this process may use, memory, accelerators: one line."""
    parts = [str(processor()), f"{cores()} cores", f"{_memory() / 2**30:.0f} GiB memory", accelerators()]
    return ", ".join(parts)


def _commit() -> str:
    return commit()


def _hardware() -> str:
    return hardware_line()


def _describe_corpus(corpus: str | Mapping[str, Any]) -> str:
    if isinstance(corpus, str):
        return corpus
    parts: list[str] = []
    for name, value in corpus.items():
        if name == "corpus":
            parts.append(f"fingerprint {value}")
        elif name == "name":
            parts.insert(0, str(value))
        elif isinstance(value, Mapping):  # split → (queries, pairs)
            parts += [f"{split} {counts[0]:,} queries / {counts[1]:,} pairs" for split, counts in value.items()]
        elif isinstance(value, int):
            parts.append(f"{value:,} {name}")
        else:
            parts.append(f"{name} {value}")
    return "; ".join(parts)


def _git(*arguments: str) -> str | None:
    """Output of git in the checkout; None where this is no checkout or there is no git."""
    if not (_CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=_CHECKOUT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cores() -> int:
    """That this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def accelerators() -> str:
    """That JAX sees: how many, and their kind."""
    import jax

    devices = [device for device in jax.devices() if device.platform != "cpu"]
    if not devices:
        return "no accelerator"
    return f"{len(devices)} × {devices[0].device_kind}"
