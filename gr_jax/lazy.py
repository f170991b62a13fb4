"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable


def names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    The package's imports under `if TYPE_CHECKING:` are its table, so that each name stands once, where type checkers
    read it too: `from gr_jax.errors import InputError as InputError`. What a package imports from itself is one of its
    submodules: `from gr_jax import systems as systems`. Any other name differs from all submodules, as Python would
    take the submodule for it once that is imported.

    Args:
      package: its `__name__`.
    """
    module = sys.modules[package]
    source = module.__spec__.loader.get_source(package)  # type: ignore[union-attr]
    modules = {
        alias.name: statement.module or ""
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def fetch(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(modules))}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(module, name, value)
        return value

    return fetch, lambda: sorted(modules), list(modules)
