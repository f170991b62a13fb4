"""Vocabularies: what every one of them offers, and the one that needs no file."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from typing import Protocol

from gr_jax import storage

KIND = "vocabulary"


class Vocabulary(Protocol):
    """Text to ids and back.

    Attributes:
      size: ids are 0 … size − 1.
      pad_id, eos_id, unk_id: special ids.
      prefix, suffix: what a model of this vocabulary expects around a text: () and (eos,) for T5, (cls,) and (sep,)
        for BERT. `encode` leaves them out, `encode_texts` puts them in.
      fingerprint: first 16 hex digits of SHA-256 over everything that decides the ids.
    """

    @property
    def size(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def unk_id(self) -> int: ...
    @property
    def prefix(self) -> tuple[int, ...]: ...
    @property
    def suffix(self) -> tuple[int, ...]: ...
    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without special ids around it."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, up to the first end of sequence; special ids are left out."""
        ...

    def save(self, folder: str | os.PathLike) -> None:
        """Writes an artefact of kind "vocabulary", which `load_vocabulary` reads."""
        ...


class ByteVocabulary:
    """UTF-8 bytes, as ByT5 numbers them: 0 pad, 1 end of sequence, 2 unknown, byte b is 3 + b.

    Args:
      extra_ids: unused ids after the bytes, 125 in the released ByT5 models.
    """

    pad_id, eos_id, unk_id = 0, 1, 2
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = (1,)

    def __init__(self, extra_ids: int = 0):
        self.extra_ids = extra_ids

    @property
    def size(self) -> int:
        return 3 + 256 + self.extra_ids

    @functools.cached_property
    def fingerprint(self) -> str:
        return fingerprint("byte", str(self.extra_ids).encode())

    def encode(self, text: str) -> list[int]:
        return [byte + 3 for byte in text.encode("utf-8", errors="replace")]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(map(self.encode, texts))

    def decode(self, ids: Sequence[int]) -> str:
        kept = (token - 3 for token in until_eos(ids, self.eos_id) if 3 <= token < 259)
        return bytes(kept).decode("utf-8", errors="replace")

    def save(self, folder: str | os.PathLike) -> None:
        save(folder, self, {"type": "byte", "extra_ids": self.extra_ids}, {})


def fingerprint(kind: str, content: bytes) -> str:
    """First 16 hex digits of SHA-256 over a vocabulary's type and content."""
    return hashlib.sha256(kind.encode() + b"\0" + content).hexdigest()[:16]


def until_eos(ids: Sequence[int], eos_id: int) -> list[int]:
    """`ids` as Python integers, up to the first `eos_id`."""
    ids = [int(token) for token in ids]
    return ids[: ids.index(eos_id)] if eos_id in ids else ids


def save(folder: str | os.PathLike, vocabulary: Vocabulary, config: dict, files: dict[str, bytes]) -> None:
    """Writes a vocabulary's folder: `vocabulary.json` and its files."""
    meta = {"fingerprint": vocabulary.fingerprint, "size": vocabulary.size, "type": config["type"]}
    with storage.write_folder(folder, KIND, meta=meta) as new:
        storage.write_json(new / "vocabulary.json", config)
        for name, content in files.items():
            (new / name).write_bytes(content)
