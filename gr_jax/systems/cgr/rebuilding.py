"""The decoder's vocabulary made again while the network is trained, by the encoder that is trained: Async (CGR, Lee et
al. 2022, arXiv 2210.02068, section 3.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from gr_jax import docids as docids_lib
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models.contextual_states import own_encoder
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.systems.cgr.vocabulary import TitleReader, pages_of, unit_rows
from gr_jax.training.hooks import Hook
from gr_jax.training.relabelling import Relabelled
from gr_jax.training.token_store import TokenStore

# Paths of the matrix in the decoder's parameters: as it is read, and as it is written.
INPUTS, OUTPUTS = "decoder_token_embedder/embedding", "decoder/logits_dense/kernel"
TARGETS = "targets"


@dataclasses.dataclass(frozen=True)
class Rebuilder:
    """Makes the matrix of the decoder, and titles in its ids, from the parameters of a moment.

    Attributes:
      module: the network.
      reader: of titles in their documents, with the network's encoder.
      written: the titles in the ids that the network starts with.
      table: float32[vocab, d], the vectors that it starts with.
      text_of: the text token of each of its ids.
      put: vectors of ids → the parameters that hold them, by path.
      clusters, seed: see `Contextual`.
    """

    module: EncoderDecoder
    reader: TitleReader
    written: Docids
    table: np.ndarray
    text_of: np.ndarray
    put: Callable[[np.ndarray], Mapping[str, np.ndarray]]
    clusters: int | None
    seed: int

    def targets(self) -> Int[np.ndarray, "pages length"]:
        """The ids of each page's title, its end included, as they are at the start; −1 pads."""
        titles, written = self.reader.titles, self.written
        rows = [int(written.rows_of(int(titles.documents_of(page)[0]))[0]) for page in range(len(titles))]
        targets = np.full((len(titles), titles.max_steps), -1, np.int32)
        for page, row in enumerate(rows):
            target = written.target(row)
            targets[page, : len(target)] = target
        return targets

    def __call__(self, params: Any, step: int) -> dict[str, np.ndarray]:
        """The hook.

        Raises:
          InputError: a matrix of another shape.
        """
        titles = self.reader.titles
        states = self.reader.read(own_encoder(self.module, jax.device_put(params))[1])
        made = docids_lib.contextual_tokens(pages_of(titles), states, clusters=self.clusters, seed=self.seed)
        if not np.array_equal(made.text_of, self.text_of):
            raise InputError(
                f"the decoder's vocabulary, made again at step {step}, has ids for other tokens",
                "States of one token have become equal, or were: lower Training.learning_rate, or Contextual.clusters.",
                value=made.vocab_size,
            )
        table = unit_rows(made, titles, self.table[self.written.eos_id])
        matrix = self.put(np.pad(table, ((0, len(self.table) - len(table)), (0, 0))))
        targets = np.where(made.targets == 0, -1, made.targets).astype(np.int32)
        return {TARGETS: targets} | {path: np.asarray(one, np.float32) for path, one in matrix.items()}


def rebuilt(rebuilder: Rebuilder, store: TokenStore, times: int, steps: int) -> tuple[Relabelled, Hook]:
    """Examples whose titles are written as the matrix of the moment has them, and what makes it again.

    Args:
      rebuilder: what makes it.
      store: questions, and titles in the first matrix's ids.
      times: how often it is made, evenly over the steps.
      steps: updates of the training, a multiple of `times` + 1.
    """
    targets = rebuilder.targets()
    settings = {"clusters": rebuilder.clusters, "seed": rebuilder.seed, "length": rebuilder.reader.length}
    hook = Hook(
        "matrix",
        rebuilder,
        steps // (times + 1),
        tables={TARGETS: targets},
        parameters=(INPUTS, OUTPUTS),
        settings=settings,
    )
    page_of = {tuple(row[row >= 0].tolist()): page for page, row in enumerate(targets)}
    labels = np.array([page_of[tuple(store.read(row)[1].tolist())] for row in range(len(store))], np.int64)
    return Relabelled(store, labels, hook, TARGETS, same_lengths=True), hook
