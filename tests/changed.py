"""The tests that a change needs, found from the files that changed and from what tests import, and run.

  python -m tests.changed                     of what is not committed
  python -m tests.changed --since=main -x     of a branch; further flags are pytest's
  python -m tests.changed --list              names the files, and runs nothing

A test file needs itself, a helper of tests the files that import it. A module needs the tests of its mirrored folder,
those of its own name first, all that import it themselves, if only through a package, and those of packaging.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
CODE = ("gr_jax", "launch", "tasks", "benchmarks")
PACKAGING = "tests/end_to_end/test_packaging.py"
MORE = {  # what a folder needs beside its mirror
    ("gr_jax/corpus/",): "tests/bad_input/test_documents.py",
    ("gr_jax/storage/",): "tests/bad_input/test_artefacts.py",
    ("gr_jax/stages/", "gr_jax/systems/"): "tests/systems/test_keys.py",
    ("gr_jax/training/",): "tests/end_to_end/test_training_and_search.py",
    ("launch/",): "tests/bad_input/test_configuration.py",
    ("gin_configs/",): "tests/systems/test_gin_files.py",
    ("gin_configs/papers/",): "tests/systems/test_papers.py",
    ("docs/",): "tests/docs/test_*.py",
    ("README.md", "benchmarks/results/"): "tests/docs/test_numbers.py",
    ("notebooks/",): "tests/end_to_end/test_notebook.py",
    ("setup.py", "requirements/"): PACKAGING,
}


class Tree:
    """The modules of the checkout at `root`, and which of them its tests import."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        found = [file.relative_to(root) for top in (*CODE, "tests") for file in sorted((root / top).rglob("*.py"))]
        self.modules = {".".join(one.with_suffix("").parts).removesuffix(".__init__"): one.as_posix() for one in found}
        self._passed_on = functools.cache(self._names_passed_on)

    @functools.cached_property
    def imports(self) -> dict[str, set[str]]:
        """File below tests/ → the files that it imports."""
        files = [file for file in self.modules.values() if file.startswith("tests/")]
        return {file: {self.modules[one] for one in self._imported(file) if one in self.modules} for file in files}

    def needed(self, changed: Iterable[str]) -> list[str]:
        """The test files that changed files need, each once: those that changed, mirrors, others, packaging."""
        found: list[tuple[int, str]] = []
        for file in changed:
            top = pathlib.PurePosixPath(file).parts[0]
            more = [pattern for start, pattern in MORE.items() if file.startswith(start)]
            found += [(3, self._named(one)) for pattern in more for one in sorted(self.root.glob(pattern))]
            if top == "tests":
                found += [(0, file)] if "/test_" in file else [(2, one) for one in self._with_helper(file)]
            elif top in CODE and file.endswith(".py"):
                users = sorted(one for one, names in self.imports.items() if file in names)
                own, mirror = self._mirror(pathlib.PurePosixPath(file))
                found += [(0, one) for one in own] + [(1, one) for one in users if one in mirror]
                found += [(1, one) for one in mirror] + [(2, one) for one in users] + [(4, PACKAGING)]
        ordered = dict.fromkeys(one for _, one in sorted(found, key=lambda pair: pair[0]) if "/test_" in one)
        return [one for one in ordered if (self.root / one).is_file()]

    def _mirror(self, path: pathlib.PurePosixPath) -> tuple[list[str], list[str]]:
        """The test files of a module's own name, and all of its mirrored folder."""
        folder = self.root.joinpath("tests", *path.parent.parts[path.parts[0] == "gr_jax" :])
        own = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"{path.stem}/test_*.py")]
        return sorted(map(self._named, own)), sorted(map(self._named, folder.glob("test_*.py")))

    def _with_helper(self, file: str) -> list[str]:
        """Files that import a helper of tests, or import one that does; of a conftest those below it."""
        reached, waiting = {file}, [file]
        while waiting:
            one = waiting.pop()
            below = one.removesuffix("conftest.py") if one.endswith("/conftest.py") else "none"
            users = {user for user, names in self.imports.items() if one in names or user.startswith(below)}
            waiting += users - reached
            reached |= users
        return sorted(reached)

    def _imported(self, file: str) -> Iterator[str]:
        """The modules that a file imports anywhere, and those whose names it takes from a package."""
        nodes, packages = list(ast.walk(self._parsed(file))), dict[str, str]()
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield (found := self._defining(node.module or "", alias.name))
                    if self.modules.get(found, "").endswith("/__init__.py"):
                        packages[alias.asname or alias.name] = found
        for node in nodes:  # losses.cross_entropy, of `from gr_jax import losses`
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
                yield self._defining(packages[node.value.id], node.attr)

    def _defining(self, module: str, name: str) -> str:
        """The module that `from module import name` gives, or that defines the name."""
        seen = set[str]()
        while f"{module}.{name}" not in self.modules:
            if module not in self.modules or module in seen:
                return module
            seen.add(module)
            module, name = self._passed_on(module).get(name, (module, name))
        return f"{module}.{name}"

    def _names_passed_on(self, module: str) -> dict[str, tuple[str, str]]:
        """Name that a module imports → the module that it imports it from, and its name there."""
        nodes = [node for node in ast.walk(self._parsed(self.modules[module])) if isinstance(node, ast.ImportFrom)]
        return {alias.asname or alias.name: (node.module or "", alias.name) for node in nodes for alias in node.names}

    def _parsed(self, file: str) -> ast.Module:
        return ast.parse((self.root / file).read_text("utf-8"))

    def _named(self, file: pathlib.Path) -> str:
        return file.relative_to(self.root).as_posix()


def changed_files(root: pathlib.Path, since: str) -> list[str]:
    """Files that differ from where the branch left `since`, those that git does not know yet included."""
    differing = ["diff", "--name-only", "--no-renames", "--merge-base", since]
    unknown = ["ls-files", "--others", "--exclude-standard"]
    runs = (subprocess.run(["git", *one], cwd=root, check=True, capture_output=True) for one in (differing, unknown))
    return sorted({os.fsdecode(line) for run in runs for line in run.stdout.splitlines()})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", help="a commit or branch")
    parser.add_argument("--list", action="store_true", help="name the files alone")
    chosen, flags = parser.parse_known_args(arguments)
    files = Tree(CHECKOUT).needed(changed_files(CHECKOUT, chosen.since))
    if chosen.list or not files:
        print("\n".join(files) or f"No test needs to run: nothing that differs from {chosen.since} has one.")
        return 0
    return int(pytest.main([*(flag for flag in flags if flag != "--"), *files]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
