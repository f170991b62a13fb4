"""Registries of what folders may hold, by kind. They are empty here, and the layers above fill them.

A manifest names a kind, never a module: nothing is imported because a folder says so. `gr_jax.opening` registers the
kinds of this package; a program registers its own by the same call.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from gr_jax.errors import InputError


class Registry:
    """Kind → the class whose `load` reads it.

    Args:
      what: what the kinds are kinds of, for messages.
    """

    def __init__(self, what: str):
        self._what = what
        self._classes: dict[str, Any] = {}

    def register(self, kind: str, cls: Any) -> None:
        """Adds a kind; once more with the same class changes nothing.

        Args:
          kind: its name.
          cls: the class, or "module:Class", which is imported when the first such folder is read.

        Raises:
          InputError: the kind is taken by another class.
        """
        if self._classes.setdefault(kind, cls) != cls:
            raise InputError(f"two kinds of {self._what} have one name", "Choose another name.", value=kind)

    def find(self, kind: object, *, file: str | os.PathLike | None = None) -> Any:
        """The class of a kind.

        Args:
          kind: its name.
          file: where the name stands, for the message.

        Raises:
          InputError: nobody registered it; lists the kinds that there are.
        """
        if not isinstance(kind, str) or kind not in self._classes:
            known = ", ".join(self.kinds) or "none: import gr_jax.opening, which registers those of this package"
            raise InputError(
                f"there is no such {self._what} here",
                f"Register it, or use the version that wrote it; known are {known}.",
                file=file,
                value=kind,
            )
        cls = self._classes[kind]
        if isinstance(cls, str):
            module, _, name = cls.partition(":")
            return getattr(importlib.import_module(module), name)
        return cls

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names that are registered, sorted."""
        return tuple(sorted(self._classes))


# Classes with `load(folder, verify=…)`; with `load(folder, corpus, verify=…)` where `reads_corpus` is true: those read
# the documents themselves when they answer or explain.
RETRIEVERS = Registry("retriever")
# Networks that write: `load(folder)` gives a `models.GenerativeModel`.
NETWORKS = Registry("network")
# From what was written to documents: `load(folder, settings)` gives a `retrievers.documents_of.DocumentsOf`.
DOCUMENTS_OF = Registry("way from what was written to documents")
# Scorers of (query, document) pairs: `load(folder, verify=…)` gives a `retrievers.rerank.Scorer`.
SCORERS = Registry("scorer")
