"""What a retriever needs of any network that writes."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar

from jaxtyping import Array, Int

from gr_jax.decoding.decoder import Cache, Decoder

Model = TypeVar("Model", bound="GenerativeModel")


class GenerativeModel(Protocol):
    """A network with its parameters: it reads queries and writes identifiers. A pytree, so that it is an argument of
    jitted functions; what decides shapes is static in it, parameters are its leaves.

    Attributes:
      start_token: what is read before the first token that is written.
      input_vocab_size: queries' tokens are below it.
      output_vocab_size: tokens that it writes are below it.
      levels: (start, size) of each position's block of tokens; None: it cannot be normalised by "level".
      eos_id: the token that ends identifiers, where they have one.
    """

    @property
    def start_token(self) -> int: ...
    @property
    def input_vocab_size(self) -> int: ...
    @property
    def output_vocab_size(self) -> int: ...

    levels: tuple[tuple[int, int], ...] | None
    eos_id: int | None

    def start(
        self,
        tokens: Int[Array, "batch source"],
        lengths: Int[Array, " batch"] | None = None,
        *,
        beams: int,
        max_len: int,
    ) -> Cache:
        """Encodes queries, or reads them as prompts, and makes the cache to decode them with.

        Args:
          tokens: of the queries, padded on the right with 0.
          lengths: tokens of each; for networks to which 0 may be a token like others. None: all count.
          beams, max_len: hypotheses of each query, and the most tokens of each.
        """
        ...

    def decoder(self) -> Decoder:
        """One step of the network, as beam search asks for it."""
        ...

    def with_parameters(self: Model, params: Any) -> Model:
        """The same network with other parameters, as looks on dev need it while training goes on."""
        ...

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as a network of its kind, which `network_folder.load_model` reads."""
        ...

    @classmethod
    def load(cls: type[Model], folder: str | os.PathLike) -> Model:
        """Reads what `save` wrote.

        Raises:
          InputError: a file is missing or is not what it should be.
        """
        ...
