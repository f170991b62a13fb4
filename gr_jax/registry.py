"""Registries of what folders may hold, by kind. They are empty here, and the layers above fill them.

A manifest names a kind, never a module: nothing is imported because a folder says so. `gr_jax.registered` registers
what the layers have, every system what is its own, and `gr_jax.load` sees to both; a program registers its own kinds by
the same calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from gr_jax.errors import InputError

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Kind → what reads it.

    Args:
      what: what the kinds are kinds of, for messages.
    """

    def __init__(self, what: str):
        self._what = what
        self._entries: dict[str, Entry] = {}
        self._fill: Callable[[], None] | None = None

    def register(self, kind: str, entry: Entry) -> None:
        """Adds a kind; once more with the same entry changes nothing.

        Raises:
          InputError: the kind is taken by another entry.
        """
        if self._entries.setdefault(kind, entry) != entry:
            raise InputError(f"two kinds of {self._what} have one name", "Choose another name.", value=kind)

    def when_unknown(self, fill: Callable[[], None]) -> None:
        """What registers more kinds; called once, when one is asked for that is not there."""
        self._fill = fill

    def find(self, kind: object, *, file: str | os.PathLike | None = None) -> Entry:
        """The entry of a kind.

        Args:
          kind: its name.
          file: where the name stands, for the message.

        Raises:
          InputError: nobody registered it; lists the kinds that there are.
        """
        if isinstance(kind, str) and kind not in self._entries and self._fill is not None:
            fill, self._fill = self._fill, None
            fill()
        if not isinstance(kind, str) or kind not in self._entries:
            known = ", ".join(sorted(self._entries)) or "none: import gr_jax.registered, which registers those it has"
            raise InputError(
                f"there is no such {self._what} here",
                f"Register it, or use the version that wrote it; known are {known}.",
                file=file,
                value=kind,
            )
        return self._entries[kind]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names that are registered, sorted."""
        return tuple(sorted(self._entries))


class RetrieverLoader(NamedTuple):
    """How a retriever's folder is opened.

    Attributes:
      load: (folder, verify=…) → the retriever; (folder, corpus, verify=…) for those that read the documents.
      reads_corpus: whether it reads the documents themselves when it answers or explains.
    """

    load: Callable[..., Any]
    reads_corpus: bool = False


RETRIEVERS: Registry[RetrieverLoader] = Registry("retriever")
# Networks that write: (folder) → a `models.GenerativeModel`.
NETWORKS: Registry[Callable[..., Any]] = Registry("network")
# From what was written to documents: (folder, settings) → a `retrievers.documents_of.DocumentsOf`.
DOCUMENTS_OF: Registry[Callable[..., Any]] = Registry("way from what was written to documents")
