"""Faults as a tired programmer would make them, one or more in every layer, and which test finds each.

  python -m tests.faults                 plants each in a copy of the checkout, and records what found it in faults.json
  python -m tests.faults --only=training those of some files; what is recorded is not run again
  python -m tests.faults --show          prints what was recorded

They were chosen from the code alone, before anybody looked for what tests find. Of each the tests that a change of its
file needs are run (`tests.changed`), the default ones first, and where none fails those with --slow. A test that fails
without the fault, too, does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from tests import changed

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
FILE = pathlib.Path(__file__).with_suffix(".json")
NOTHING = "nothing"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One change of one file.

    Attributes:
      file: that is changed.
      before: what stands there, once.
      after: what stands there instead.
      what: what is wrong with it.
    """

    file: str
    before: str
    after: str
    what: str


FAULTS = (
    Fault(
        "gr_jax/text/encode.py",
        "row = prefix + ids[:room] + suffix",
        "row = (prefix + ids + suffix)[:max_length]",
        "a text that is cut loses its end token",
    ),
    Fault(
        "gr_jax/storage/folder.py",
        'if checksum is not None and checksum(file) != entry["sha256"]:',
        "if checksum is not None and not checksum(file):",
        "a checksum is computed and not compared",
    ),
    Fault(
        "gr_jax/storage/checksums.py",
        "if before.st_mtime_ns < time.time_ns() - _TOO_YOUNG:",
        "if before.st_mtime_ns < time.time_ns():",
        "a file that has just changed is remembered",
    ),
    Fault(
        "gr_jax/corpus/trec.py",
        "hits.sort(key=lambda hit: -hit[1])",
        "hits.sort(key=lambda hit: (-hit[1], hit[0]))",
        "equal scores are sorted by id instead of keeping their order",
    ),
    Fault(
        "gr_jax/datasets/nq_build.py",
        '            if split == "train":\n                seen.add(page)\n',
        "            seen.add(page)\n",
        "pages of dev count as seen in training",
    ),
    Fault(
        "gr_jax/clustering/lloyd.py",
        "members = (jnp.arange(k) == nearest[:, None]) & real[:, None]  # --> [n, k]",
        "members = jnp.arange(k) == nearest[:, None]  # --> [n, k]",
        "padding is a member of clusters: a mask is dropped",
    ),
    Fault(
        "gr_jax/clustering/residual_quantization.py",
        "np.random.default_rng((seed, level))",
        "np.random.default_rng(level)",
        "the seed is ignored",
    ),
    Fault(
        "gr_jax/docids/docids.py",
        "more.documents + self.num_documents])",
        "more.documents + len(self)])",
        "added documents are numbered from the docids' number instead of the documents'",
    ),
    Fault(
        "gr_jax/docids/span_samplers.py",
        "weights = (overlap / most) ** (1.0 / temperature)",
        "weights = (overlap / most) ** temperature",
        "a temperature is taken upside down",
    ),
    Fault(
        "gr_jax/constraints/trie.py",
        "may_end = live & ~is_parent & (rest == END)",
        "may_end = live & ~is_parent",
        "EOS is allowed before the rest of a leaf is written",
    ),
    Fault(
        "gr_jax/constraints/fm_index_candidates.py",
        "certain = (found.log_prob[..., -1] >= log_prob[..., -1])",
        "certain = (found.log_prob[..., 0] >= log_prob[..., -1])",
        "candidates are certified by the best of them instead of the k-th",
    ),
    Fault(
        "gr_jax/constraints/token_text_trie.py",
        "apart = jnp.where(ids != UNUSED, log_prob.reshape(ids.shape), -jnp.inf)",
        "apart = log_prob.reshape(ids.shape)",
        "columns without a decoder id have a probability: a mask is dropped",
    ),
    Fault(
        "gr_jax/constraints/mixed.py",
        "ending=beam * found.ending)",
        "ending=found.ending)",
        "a flat list keeps the number of ending columns of one beam",
    ),
    Fault(
        "gr_jax/dense/exact.py",
        "allowed[:, first : first + count]",
        "allowed[:, :count]",
        "later blocks are filtered by the filter of the first",
    ),
    Fault(
        "gr_jax/decoding/sampling.py",
        "jax.random.gumbel(jax.random.fold_in(self.key, step), log_prob.shape)",
        "jax.random.gumbel(self.key, log_prob.shape)",
        "every step draws with the same random numbers",
    ),
    Fault(
        "gr_jax/decoding/beam_search.py",
        "jnp.where(ending.scores < cut, -jnp.inf, ending.scores)",
        "jnp.where(ending.scores <= cut, -jnp.inf, ending.scores)",
        "what equals the last of the beam is cut: <= for <",
    ),
    Fault(
        "gr_jax/losses/contrastive.py",
        "allowed = (document_index >= 0)[None] & (document_index[None] != positive_index[:, None])",
        "allowed = (document_index >= 0)[None]",
        "a query's positive is its negative where another query has it, too",
    ),
    Fault(
        "gr_jax/losses/cross_entropy.py",
        "others = jnp.maximum(support - 1.0, 1.0)",
        "others = jnp.maximum(support, 1.0)",
        "label smoothing is over n instead of n - 1 other tokens",
    ),
    Fault(
        "gr_jax/models/attention.py",
        "slots = jnp.where(steps == step, own, ancestors[:, :, :length])",
        "slots = jnp.where(steps <= step, own, ancestors[:, :, :length])",
        "a hypothesis reads its own slots of the cache instead of its ancestors'",
    ),
    Fault(
        "gr_jax/models/rotary.py",
        "base ** (-jnp.arange(half, dtype=jnp.float32) / half)",
        "base ** (-jnp.arange(half, dtype=jnp.float32) / x.shape[-1])",
        "frequencies fall half as fast: a scale",
    ),
    Fault(
        "gr_jax/models/pawa.py",
        "return self._widened(prefix), (written, sources)",
        "return self._widened(prefix), cache",
        "the cache of prefixes is not advanced",
    ),
    Fault(
        "gr_jax/training/loop.py",
        "self._data.set_state(snapshot.data)\n            hooks.start(",
        "hooks.start(",
        "training that goes on begins the data anew",
    ),
    Fault(
        "gr_jax/training/checkpoints.py",
        "needed = needed | set(latest) | {_best_of(path_of(self.folder, step)) for step in latest}",
        "needed = needed | set(latest)",
        "a checkpoint that an older one names best is removed",
    ),
    Fault(
        "gr_jax/training/train_state.py",
        "gradient(learn, frozen, piece, jax.random.fold_in(rng, number))",
        "gradient(learn, frozen, piece, rng)",
        "all microbatches have the same dropout",
    ),
    Fault(
        "gr_jax/training/contrastive_batches.py",
        "np.pad(columns + 1, ((0, 0), (1, 0)))",
        "np.pad(columns, ((0, 0), (1, 0)))",
        "a teacher's score is that of the document before: off by one",
    ),
    Fault(
        "gr_jax/training/order.py",
        "np.random.default_rng([*self._key, epoch])",
        "np.random.default_rng([*self._key])",
        "every epoch has the same order",
    ),
    Fault(
        "gr_jax/evaluation/significance.py",
        "return (1 + extreme) / (1 + samples)",
        "return extreme / samples",
        "the difference that was seen is not one of the samples: p can be 0",
    ),
    Fault(
        "gr_jax/retrievers/hybrid.py",
        "        table[number] = floor\n",
        "",
        "a document that a part did not find gets 0 instead of that part's lowest",
    ),
    Fault(
        "gr_jax/retrievers/ngram_scorer.py",
        "order = np.lexsort((*tokens.T[::-1], ngrams.roots, -weights))",
        "order = np.lexsort((*tokens.T[::-1], ngrams.roots, weights))",
        "of equal n-grams the least likely stays: a sort direction",
    ),
    Fault(
        "gr_jax/interop/huggingface.py",
        "np.ascontiguousarray(head.T) * np.float32(shared.shape[1] ** -0.5 if scaled else 1.0)",
        "np.ascontiguousarray(head.T)",
        "an output kernel is not scaled by 1/sqrt(d)",
    ),
    Fault(
        "gr_jax/stages/keys.py",
        "if rules.speed or (rules.neutral is not UNSET and one == rules.neutral):",
        "if rules.speed or rules.neutral is not UNSET:",
        "a key misses settings that have a neutral value",
    ),
    Fault(
        "gr_jax/stages/graph.py",
        "keys.digest([FORMAT, self.kind, self.version, self.config, inputs])",
        "keys.digest([FORMAT, self.kind, self.config, inputs])",
        "a key misses the stage's version",
    ),
    Fault(
        "gr_jax/systems/gdr/decoding.py",
        "total = jax.nn.logsumexp(unfiltered.scores, axis=1, keepdims=True)",
        "total = jax.nn.logsumexp(found.scores, axis=1, keepdims=True)",
        "what a cluster weighs depends on the filter",
    ),
    Fault(
        "gr_jax/systems/dsi.py",
        "if self.identifiers.title_tokens >= self.training.row_targets:",
        "if self.identifiers.title_tokens > self.training.row_targets:",
        "titles that leave no room for their end are not refused",
    ),
    Fault(
        "gr_jax/systems/dpr/query_side.py",
        'document_prefix=encoder.prefixes["document"],',
        'document_prefix=encoder.prefixes["query"],',
        "documents get the prefix of queries",
    ),
    Fault(
        "gr_jax/systems/colbert/network.py",
        "mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)",
        "mask = jnp.pad(mask, ((0, 0), (1, 0)))",
        "the vector of a document's whole text is masked",
    ),
    Fault(
        "gr_jax/systems/ngram/passage_scores.py",
        "log_probs = jnp.minimum(log_probs + shifts, mosts)",
        "log_probs = jnp.minimum(log_probs, mosts) + shifts",
        "a view's shift is added behind its limit",
    ),
    Fault(
        "gr_jax/systems/cgr/writer.py",
        "return held | {pattern: factor for pattern, factor in multipliers.items() if pattern not in held}",
        "return dict(multipliers) | held",
        "a wider pattern comes before those that hold the matrix, and decides",
    ),
    Fault(
        "gr_jax/systems/cross_encoder/network.py",
        "behind = place - query_length + prefix_length",
        "behind = place - query_length",
        "the document of a pair keeps its prefix",
    ),
    Fault(
        "launch/supervise.py",
        "if (often := self._faults()) > self._restarts:",
        "if (often := self._faults()) >= self._restarts:",
        "a run is given up one start too early",
    ),
)


class Copy:
    """A copy of the checkout's files, but for those that git ignores, in which faults are planted."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in self._git(CHECKOUT, "ls-files", "--cached", "--others", "--exclude-standard").split("\n"):
            if name and (CHECKOUT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((CHECKOUT / name).read_bytes())
        self._git(folder, "init", "-q")
        self._git(folder, "add", "-A")
        self._tree = changed.Tree(folder)
        data = pathlib.Path(os.environ.get("GR_JAX_SHARED_DATA") or CHECKOUT.parent / "shared" / "data")
        self._environment = {**os.environ, "GR_JAX_SHARED_DATA": str(data)}

    def judged(self, fault: Fault, unsound: Iterable[str] = ()) -> dict[str, str | float]:
        """Which test finds a fault first, whether it is one of the default ones, and after how many seconds.

        Args:
          fault: it is planted meanwhile.
          unsound: tests that fail without it, too, and are left out.
        """
        started, files = time.monotonic(), self._tree.needed([fault.file])
        left_out = [f"--deselect={one}" for one in unsound]
        for found, flags in (("default", left_out), ("slow", [*left_out, "--slow"])):
            for part in filter(None, (files[:1], files[1:])):  # most are found by the first, and the others are many
                with self._planted(fault):
                    failed = self._failing("-x", *flags, *part)
                if failed:
                    return {"found": found, "by": failed[0], "seconds": round(time.monotonic() - started, 1)}
        return {"found": NOTHING, "by": NOTHING, "seconds": round(time.monotonic() - started, 1)}

    def unsound(self, tests: Iterable[str]) -> list[str]:
        """Those of these tests that fail without a fault."""
        wanted = sorted(set(tests) - {NOTHING})
        return self._failing("--slow", *wanted) if wanted else []

    @contextlib.contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        file = self.folder / fault.file
        sound = file.read_text("utf-8")
        file.write_text(sound.replace(fault.before, fault.after), "utf-8")
        try:
            yield
        finally:
            file.write_text(sound, "utf-8")

    def _failing(self, *words: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", *words]
        done = subprocess.run(command, cwd=self.folder, env=self._environment, capture_output=True, text=True)
        failed = _FAILED.findall(done.stdout)
        if done.returncode not in (0, 5) and not failed:  # 5: no test is left
            raise RuntimeError(f"{' '.join(command)} could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return failed

    @staticmethod
    def _git(where: pathlib.Path, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=where, check=True, capture_output=True, text=True).stdout


def table(rows: list[dict]) -> str:
    """Every fault with what found it, and how many were found by what."""
    lines = [f"{row['found']:7} {row['seconds']:6.0f} s  {row['file']}: {row['what']}  {row['by']}" for row in rows]
    counts = {name: sum(row["found"] == name for row in rows) for name in ("default", "slow", NOTHING)}
    return "\n".join([*lines, f"{len(rows)} faults: " + ", ".join(f"{name} {count}" for name, count in counts.items())])


def recorded() -> dict[Fault, dict]:
    """What is known of the faults as they are now, in their order."""
    known = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else []
    names = [field.name for field in dataclasses.fields(Fault)]
    of_fault = {Fault(*(row[name] for name in names)): row for row in known}
    return {one: of_fault[one] for one in FAULTS if one in of_fault}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of files")
    parser.add_argument("--show", action="store_true", help="print what was recorded")
    chosen = parser.parse_args(arguments)
    waiting = [one for one in FAULTS if chosen.only in one.file and one not in recorded()]
    if not chosen.show:
        with tempfile.TemporaryDirectory() as folder:
            copy, unsound = Copy(pathlib.Path(folder) / "checkout"), set[str]()
            while waiting:
                for fault in waiting:
                    row = {**dataclasses.asdict(fault), **copy.judged(fault, unsound)}
                    rows = {**recorded(), fault: row}
                    FILE.write_text(json.dumps([rows[one] for one in FAULTS if one in rows], indent=1) + "\n", "utf-8")
                    print(table([row]).splitlines()[0], flush=True)
                unsound |= {*copy.unsound(row["by"] for row in recorded().values())}
                waiting = [fault for fault, row in recorded().items() if row["by"] in unsound]
    print(table([*recorded().values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
