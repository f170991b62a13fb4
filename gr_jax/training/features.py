"""From a pair of texts to token rows: the one place where a training example gets its tokens.

Plain Python and NumPy. `write_token_store` and the seqio Tasks of `tasks/` both call `PairFeatures`, so a corpus that
is tokenised with seqio and one that is tokenised without it give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from gr_jax.errors import InputError
from gr_jax.text import Vocabulary
from gr_jax.training.example_sources import source_names, source_number


@dataclasses.dataclass(frozen=True)
class Pair:
    """One training example before tokenising.

    Attributes:
      text: what the encoder reads.
      target: the token ids the decoder shall write, without EOS (a docid), or a text where the target has a
        vocabulary (a title).
      source: which kind of example it is, see `example_sources`.
    """

    text: str
    target: Sequence[int] | str
    source: str = "query"


@dataclasses.dataclass(frozen=True)
class PairFeatures:
    """Tokenises pairs.

    Attributes:
      vocabulary: of the input texts; its `prefix` and `suffix` are put around every text, the text is cut so that both
        stay.
      max_input_length: tokens of an input at most, prefix and suffix included.
      eos_id: token that ends a target, None where all targets have the same length and need none.
      target_vocabulary: where targets are texts; None where they are token ids already.
      max_target_length: tokens of a target at most, EOS included. A longer docid is an error, since a cut docid names
        another document; a longer text is cut. None: as long as they come.
    """

    vocabulary: Vocabulary
    max_input_length: int = 64
    eos_id: int | None = None
    target_vocabulary: Vocabulary | None = None
    max_target_length: int | None = None

    def __post_init__(self):
        room = self.max_input_length - len(self.vocabulary.prefix) - len(self.vocabulary.suffix)
        if room < 1:
            raise InputError(
                "max_input_length leaves no room for a single token between prefix and suffix",
                f"Set it to at least {self.max_input_length - room + 1}.",
                value=self.max_input_length,
            )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What decides the tokens, as JSON."""
        target = self.target_vocabulary
        return {
            "vocabulary": self.vocabulary.fingerprint,
            "max_input_length": self.max_input_length,
            "eos_id": self.eos_id,
            "target_vocabulary": None if target is None else target.fingerprint,
            "max_target_length": self.max_target_length,
        }

    def rows(self, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        """`row` of many pairs; quicker, since vocabularies tokenise many texts at once."""
        ids = self.vocabulary.encode_batch([pair.text for pair in pairs])
        return [self._row(pair, tokens) for pair, tokens in zip(pairs, ids, strict=True)]

    def row(self, pair: Pair) -> dict[str, Any]:
        """The features of one pair.

        Returns:
          {"inputs": int32[n], "targets": int32[m], "source": int8 scalar}; targets end in EOS where `eos_id` is set.

        Raises:
          InputError: an unknown source, an empty target, or a docid longer than `max_target_length`.
        """
        return self._row(pair, self.vocabulary.encode(pair.text))

    def _row(self, pair: Pair, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "inputs": self._input(tokens),
            "targets": self._target(pair),
            "source": np.int8(source_number(pair.source)),
        }

    def _input(self, tokens: Sequence[int]) -> Int32[np.ndarray, " n"]:
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        room = self.max_input_length - len(prefix) - len(suffix)
        return np.array([*prefix, *tokens[:room], *suffix], np.int32)

    def _target(self, pair: Pair) -> Int32[np.ndarray, " m"]:
        end = [] if self.eos_id is None else [self.eos_id]
        limit = None if self.max_target_length is None else self.max_target_length - len(end)
        if isinstance(pair.target, str):
            if self.target_vocabulary is None:
                raise InputError(
                    "the target is a text and there is no vocabulary for targets",
                    "Give PairFeatures a target_vocabulary, or token ids as targets.",
                    value=pair.target,
                )
            tokens = list(self.target_vocabulary.encode(pair.target))[:limit]
        else:
            tokens = [int(token) for token in pair.target]
            if limit is not None and len(tokens) > limit:
                raise InputError(
                    f"a docid of {len(tokens)} tokens does not fit into max_target_length={self.max_target_length}",
                    "Raise max_target_length: a docid that is cut names another document.",
                    value=tokens,
                )
        if not tokens:
            raise InputError("a pair has an empty target", "Give every pair the docid it shall write.", value=pair.text)
        return np.array(tokens + end, np.int32)


def pair_to_json(pair: Pair) -> str:
    """One line of a pairs file, without the line end."""
    target = pair.target if isinstance(pair.target, str) else [int(token) for token in pair.target]
    return json.dumps({"text": pair.text, "target": target, "source": pair.source}, ensure_ascii=False)


def pair_from_json(line: str | bytes, *, file: object = None, number: int | None = None) -> Pair:
    """Reads one line of a pairs file: {"text": …, "target": [ids] or text, "source": …}.

    Raises:
      InputError: naming `file` and line `number`.
    """
    where: dict[str, Any] = {"file": file, "line": number}
    remedy = 'Write one object {"text": "…", "target": [3, 1, 4], "source": "query"} per line.'
    try:
        raw = json.loads(line)
        text, target, source = raw["text"], raw["target"], raw.get("source", "query")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"not a pair: {type(error).__name__}: {error}", remedy, value=line, **where) from error
    whole = isinstance(target, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in target)
    if not isinstance(text, str) or not (isinstance(target, str) or whole) or source not in source_names():
        raise InputError("not a pair: a field has the wrong type", remedy, value=line, **where)
    return Pair(text, target, source)
