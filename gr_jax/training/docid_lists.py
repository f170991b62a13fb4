"""Docids of the documents of ranked lists, as the network reads them, and batches of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from gr_jax.docids import Docids
from gr_jax.training.batches import BatchDataset, own_rows
from gr_jax.training.ranked_lists import BatchOfLists, DrawnLists


@dataclasses.dataclass(frozen=True)
class DocidTargets:
    """What is written to name the documents of a question's lists.

    Attributes:
      targets: int32[docids, length], tokens of every docid, the token that ends it included; 0 is padding.
      rows: int32[questions, c, n], of each candidate its docids, as rows of `targets`; −1 where it has fewer.
      sources: int32[questions, source], what the network reads of each question; 0 is padding.
    """

    targets: Int32[np.ndarray, "docids length"]
    rows: Int32[np.ndarray, "questions c n"]
    sources: Int32[np.ndarray, "questions source"]

    def of(
        self, questions: Int[np.ndarray, " batch"], places: Int[np.ndarray, "batch documents"]
    ) -> Int32[np.ndarray, "batch documents n length"]:
        """The docids of candidates.

        Args:
          questions: their numbers.
          places: among each question's candidates; −1 is no document, and has no docid.
        """
        rows = np.where(places[..., None] >= 0, self.rows[questions[:, None], np.maximum(places, 0)], -1)
        return np.where(rows[..., None] >= 0, self.targets[np.maximum(rows, 0)], 0)

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all of it."""
        digest = hashlib.sha256()
        for array in (self.targets, self.rows, self.sources):
            digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def targets_of(docids: Docids) -> Int32[np.ndarray, "docids length"]:
    """What is written for each docid: its tokens, then EOS where decoding ends in it; 0 behind."""
    targets = np.zeros((len(docids), docids.max_steps), np.int32)
    targets[:, : docids.tokens.shape[1]] = docids.tokens
    if docids.eos_id is not None:
        targets[np.arange(len(docids)), docids.lengths] = docids.eos_id
    return targets


class DocidListBatches:
    """Batches of lists without end, and beside each one of examples of docids that are to be written. What is in batch
    n depends on the seeds and n alone.

    Args:
      lists: of questions.
      docids: of their candidates.
      written: batches of examples without end, of the same process; None: nothing is written.
      batch_size: questions of a batch, over all processes.
      process: (index, count) of this host; None asks JAX.

    Yields:
      encoder_input_tokens int32[B, source]; docid_tokens int32[B, lists · length, n, tokens], 0 behind each and where
      there is none; list_valid bool[B, lists, length] and list_teacher float32[B, lists, length], see `ranking_cost`;
      and what `written` yields, its names behind "write_".

    Raises:
      InputError: the questions of a batch cannot be split over the processes.
    """

    def __init__(
        self,
        lists: DrawnLists,
        docids: DocidTargets,
        written: BatchDataset | None,
        batch_size: int,
        *,
        process: tuple[int, int] | None = None,
    ):
        self._local = own_rows(batch_size, process, "questions")
        self._lists, self._docids, self.written, self.batch_size = lists, docids, written, batch_size
        self.settings = {
            "lists": lists.fingerprint, "docids": docids.fingerprint, "batch_size": batch_size,
            "written": None if written is None else written.settings,
        }  # fmt: skip

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch over all processes."""
        shapes = {name: (self.batch_size, *one.shape[1:]) for name, one in self.ranked(0).items()}
        if self.written is not None:
            shapes |= {f"write_{name}": shape for name, shape in self.written.input_shapes.items()}
        return shapes

    def ranked(self, number: int) -> dict[str, np.ndarray]:
        """This process's rows of batch `number`, without what is written beside it."""
        lists = BatchOfLists(*(one[self._local] for one in self._lists.batch(number, self.batch_size)))
        return {
            "encoder_input_tokens": self._docids.sources[lists.questions],
            "docid_tokens": self._docids.of(lists.questions, lists.places.reshape(len(lists.places), -1)),
            **lists.features,
        }

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return _DocidListIterator(self)


class _DocidListIterator:
    """Its state: `number`, batches so far, and where the examples are."""

    def __init__(self, batches: DocidListBatches):
        self._batches, self._number = batches, 0
        self._written: Any = None if batches.written is None else iter(batches.written)

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number, "written": None if self._written is None else self._written.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._number = int(state["number"])
        if self._written is not None:
            self._written.set_state(state["written"])

    def __iter__(self) -> _DocidListIterator:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = self._batches.ranked(self._number)
        if self._written is not None:
            batch |= {f"write_{name}": one for name, one in next(self._written).items()}
        self._number += 1
        return batch
