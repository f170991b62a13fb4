"""Tables with a row a query: the documents that it is shown, and what is known of each."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Any, ClassVar, Self

import numpy as np

from gr_jax import storage


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table whose fields are arrays, or None. It is a source of tables too: the same one at every step.

    Attributes:
      documents: positions in the corpus, −1 where there are fewer; [queries, width].
    """

    kind: ClassVar[str]  # of the artefact

    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def width(self) -> int:
        """Most documents of a query."""
        return self.documents.shape[1]

    @property
    def _arrays(self) -> dict[str, np.ndarray | None]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the content."""
        digest = hashlib.sha256()
        for array in self._arrays.values():
            digest.update(b"none" if array is None else f"{array.shape}".encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def settings(self) -> Any:
        """What a checkpoint keeps of it, JSON."""
        return self.fingerprint

    def at(self, step: int) -> Self:
        """The table that the batch of this step draws from: always this one."""
        del step
        return self

    def save(self, folder: str | os.PathLike, *, corpus: str = "", made_from: str = "", gin: str = "") -> None:
        """Writes an artefact of the table's kind."""
        meta = {"queries": len(self), "width": self.width}
        with storage.write_folder(folder, self.kind, corpus=corpus, made_from=made_from, meta=meta, gin=gin) as new:
            for name, array in self._arrays.items():
                if array is not None:
                    np.save(new / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> Self:
        """Memory-maps what `save` wrote.

        Raises:
          InputError: there is none, or it is truncated or altered.
        """
        folder = pathlib.Path(folder)
        files = storage.read_folder(folder, cls.kind, verify=verify).files
        names = [field.name for field in dataclasses.fields(cls) if f"{field.name}.npy" in files]
        return cls(**{name: storage.load_array(folder / f"{name}.npy", mmap=True) for name in names})
