"""Vocabularies from Hugging Face's `tokenizer.json`."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from gr_jax.errors import InputError
from gr_jax.text import vocabulary

# What the special tokens are called: T5 and its kin, BERT and its kin, GPT and its kin.
_PAD = ("<pad>", "[PAD]", "<|endoftext|>")
_EOS = ("</s>", "[SEP]", "<|im_end|>", "<|endoftext|>", "<eos>")
_UNK = ("<unk>", "[UNK]", "<|endoftext|>")


class HuggingFaceVocabulary:
    """A tokenizer of the `tokenizers` library.

    Truncation and padding that the file asks for are turned off: the lengths are the caller's. `prefix` and `suffix`
    are what the file's own post-processor puts around a text, `content` is the file itself.

    Args:
      tokenizer: a `tokenizer.json`, a folder that holds one, or its content.

    Raises:
      InputError: no such file, not a tokenizer, no padding or end token, or the package tokenizers is not installed.
    """

    FILE = "tokenizer.json"

    def __init__(self, tokenizer: str | os.PathLike | bytes):
        library = _library()
        file = None
        if not isinstance(tokenizer, bytes):
            file = pathlib.Path(tokenizer)
            file = file / self.FILE if file.is_dir() else file
            try:
                tokenizer = file.read_bytes()
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", "Name a tokenizer.json.", file=file) from error
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(tokenizer.decode("utf-8"))
        except Exception as error:  # the binding raises bare Exception
            raise InputError(f"not a tokenizer: {error}", "Name a tokenizer.json.", file=file) from error
        self.content = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.pad_id = self._special(_PAD, "padding", file)
        self.eos_id = self._special(_EOS, "end-of-sequence", file)
        self.unk_id = self._special((json.loads(tokenizer)["model"].get("unk_token"), *_UNK), "unknown", file)
        bare, whole = self.encode("a"), self._tokenizer.encode("a").ids
        start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        self.prefix: tuple[int, ...] = tuple(whole[:start])
        self.suffix: tuple[int, ...] = tuple(whole[start + len(bare) :])

    @functools.cached_property
    def fingerprint(self) -> str:
        return vocabulary.fingerprint("huggingface", self.content)

    def encode(self, text: str) -> list[int]:
        return self._without_padding(self._tokenizer.encode(_valid(text), add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch_fast([_valid(text) for text in texts], add_special_tokens=False)
        return [self._without_padding(encoding.ids) for encoding in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        kept = vocabulary.until_eos(ids, self.eos_id)
        return self._tokenizer.decode([token for token in kept if 0 <= token < self.size], skip_special_tokens=True)

    def decode_all(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens such as [UNK] included, as scripts that read titles back have them."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token(self, number: int) -> str:
        """What an id stands for, special tokens included."""
        return self._tokenizer.id_to_token(number)

    def save(self, folder: str | os.PathLike) -> None:
        vocabulary.save(folder, self, {"type": "huggingface"}, {self.FILE: self.content})

    def _without_padding(self, ids: list[int]) -> list[int]:
        """A text that writes the padding token out, "[PAD]", gets its id from the library; networks take it for the end
        of the text, or for a hole in it."""
        return [token for token in ids if token != self.pad_id] if self.pad_id in ids else ids

    def _special(self, names: Sequence[Any], what: str, file: pathlib.Path | None) -> int:
        for name in names:
            token = self._tokenizer.token_to_id(name) if isinstance(name, str) else None
            if token is not None:
                return token
        raise InputError(
            f"a tokenizer without {what} token", f"Add one of {', '.join(filter(None, names))} to it.", file=file
        )


def _valid(text: str) -> str:
    """`text` without half surrogate pairs, which no UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


def _library() -> Any:
    if importlib.util.find_spec("tokenizers") is None:
        raise InputError("Hugging Face vocabularies need the package tokenizers", "pip install 'gr_jax[data]'")
    import tokenizers

    return tokenizers
