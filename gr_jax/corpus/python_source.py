"""Documented names of Python packages, read from their source with `ast`: nothing is imported, nothing is run."""

from __future__ import annotations

import ast
import dataclasses
import gc
import importlib.util
import inspect
import os
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from gr_jax.errors import InputError

STDLIB = "stdlib"

# Parts of module names that hold tests, programs, tables of characters, or what Python 3.12 left behind.
_LEFT_OUT = {
    "test",
    "tests",
    "testdata",
    "conftest",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "distutils",
    "encodings",
}
_CALL = re.compile(r"(?s)([\w.]+)\(.*\)(?: -> .*)?\Z")
_TEST_FILE = re.compile(r"(^|_)tests?$|^tests?_")


@dataclasses.dataclass
class Definition:
    """A documented module, class, function or method.

    Attributes:
      name: its name in its module, with the class in front for methods; "" for the module itself.
      signature: as in the source, on one line; "" for modules.
      doc: the docstring, dedented.
    """

    name: str
    signature: str
    doc: str


@dataclasses.dataclass
class Module:
    """What one source file binds.

    Attributes:
      name: dotted.
      is_package: whether it is an `__init__.py`.
      definitions: documented definitions by name.
      bound: names that are defined here, documented or not.
      imported: local name → (module, name in it or "" for the module itself).
      reexported: local names that were imported for others, by `import a as a` or an assignment.
      stars: modules of which everything is imported.
      exported: `__all__`, None where there is none that could be read.
      exports_computed: whether `__all__` is more than a list of strings.
      added: docstrings of what is written in C, by (module, name).
    """

    name: str
    is_package: bool
    definitions: dict[str, Definition] = dataclasses.field(default_factory=dict)
    bound: set[str] = dataclasses.field(default_factory=set)
    imported: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    reexported: set[str] = dataclasses.field(default_factory=set)
    stars: list[str] = dataclasses.field(default_factory=list)
    exported: set[str] | None = None
    exports_computed: bool = False
    added: dict[tuple[str, str], Definition] = dataclasses.field(default_factory=dict)


def read_modules(packages: Iterable[str]) -> dict[str, Module]:
    """All modules of the packages by dotted name; raises as `find_modules`."""
    # Syntax trees are millions of small objects that hold no cycles: looking for some takes half of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        read = ((name, read_module(name, file)) for package in packages for name, file in find_modules(package))
        return {name: module for name, module in read if module is not None}
    finally:
        if was_enabled:
            gc.enable()


def find_modules(package: str) -> Iterator[tuple[str, pathlib.Path]]:
    """(dotted name, source file) of the modules of an installed package, tests left out, sorted by name.

    Args:
      package: importable name, or "stdlib".

    Raises:
      InputError: the package is not installed or has no Python source.
    """
    found: dict[str, pathlib.Path] = {}
    for prefix, root in _roots(package):
        for file in [root] if root.is_file() else _walk(root):
            relative = (file.relative_to(root.parent if prefix else root)).with_suffix("")
            parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
            if parts and all(map(_is_read, parts)):
                found.setdefault(".".join(parts), file)
    if not found:
        raise InputError("this package has no Python source to read", "Name another package.", value=package)
    yield from sorted(found.items())


def _walk(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Source files below a folder, without descending into what is left out: site-packages stands in the library's."""
    for folder, folders, files in os.walk(root):
        folders[:] = filter(_is_read, folders)
        yield from (pathlib.Path(folder, file) for file in files if file.endswith(".py"))


def _is_read(part: str) -> bool:
    """Whether modules of this name, and below it, are read."""
    return part.isidentifier() and part not in _LEFT_OUT and not _TEST_FILE.search(part)


def _roots(package: str) -> list[tuple[bool, pathlib.Path]]:
    """(whether the folder's own name is part of module names, folder or file) of a package."""
    if package == STDLIB:
        return [(False, pathlib.Path(sysconfig.get_path("stdlib")))]
    try:
        spec = importlib.util.find_spec(package) if "." not in package else None
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        # A namespace package (orbax) has several folders.
        return [(True, pathlib.Path(folder)) for folder in sorted(spec.submodule_search_locations)]
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return [(True, pathlib.Path(spec.origin))]
    raise InputError(
        "no such package with Python source is installed", "Install it, or leave it out of the packages.", value=package
    )


def read_module(name: str, file: pathlib.Path) -> Module | None:
    """Parses one file; None where it is no Python of this version (templates, tests of syntax errors)."""
    module = Module(name, file.name == "__init__.py")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return None
    _document(module, "", "", tree)
    _read_body(module, tree.body)
    return module


def _read_body(module: Module, body: Iterable[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            module.bound.add(node.name)
            _read_definition(module, node, "")
        elif isinstance(node, ast.ImportFrom):
            _read_import(module, node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    module.imported[alias.asname] = (alias.name, "")
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            _read_assignment(module, node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            _read_added_doc(module, node.value)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            _read_body(module, node.body)
            for handler in getattr(node, "handlers", ()):
                _read_body(module, handler.body)
            _read_body(module, getattr(node, "orelse", ()))
            _read_body(module, getattr(node, "finalbody", ()))


def _read_definition(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, outer: str) -> None:
    name = f"{outer}{node.name}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        _document(module, name, f"class {node.name}({bases})" if bases else f"class {node.name}", node)
        if not outer:
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
                    _read_definition(module, child, f"{name}.")
        return
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    _document(module, name, f"{node.name}({ast.unparse(node.args)}){returns}", node)


def _document(module: Module, name: str, signature: str, node: ast.AST) -> None:
    doc = ast.get_docstring(node)  # type: ignore[arg-type]
    if doc and doc.strip():
        # Of overloads and platform variants the first documented one counts.
        module.definitions.setdefault(name, _definition(name, signature, doc))


def _definition(name: str, signature: str, doc: str) -> Definition:
    """Docstrings of what is written in C open with the signature, which is then taken from there."""
    doc = doc.strip()
    first, _, rest = doc.partition("\n\n")
    called = _CALL.match(first)
    if called and rest.strip() and called[1].rpartition(".")[2] == name.rpartition(".")[2]:
        signature, doc = first, rest.strip()
    return Definition(name, " ".join(signature.split()), doc)


def _read_import(module: Module, node: ast.ImportFrom) -> None:
    source = node.module or ""
    if node.level:
        parts = module.name.split(".")
        parts = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
        source = ".".join([*parts, *([source] if source else [])])
    for alias in node.names:
        if alias.name == "*":
            module.stars.append(source)
            continue
        local = alias.asname or alias.name
        module.imported[local] = (source, alias.name)
        if module.is_package or alias.asname == alias.name:
            module.reexported.add(local)


def _read_assignment(module: Module, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if not isinstance(target, ast.Name):
            continue
        module.bound.add(target.id)
        if target.id == "__all__":
            _read_exports(module, node)
        elif isinstance(node.value, ast.Name | ast.Attribute) and not target.id.startswith("_"):
            # `adam = alias.adam`: the name that users import.
            owner, _, name = ast.unparse(node.value).rpartition(".")
            module.imported[target.id] = (f"={owner}", name)
            module.reexported.add(target.id)


def _read_exports(module: Module, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
    """`__all__` where it is a list of strings; anything computed makes it unknown, and then it is not relied on."""
    try:
        names = set(ast.literal_eval(node.value)) if node.value is not None else set()
    except (ValueError, TypeError):
        module.exported, module.exports_computed = None, True
        return
    if not module.exports_computed:
        module.exported = names | (module.exported or set())


def _read_added_doc(module: Module, call: ast.Call) -> None:
    """NumPy documents what is written in C by add_newdoc(module, name, doc), methods by (name, doc)."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "add_newdoc" and len(call.args) >= 3):
        return
    try:
        place, name, doc = (ast.literal_eval(argument) for argument in call.args[:3])
    except ValueError:
        return
    members = doc if isinstance(doc, list) else [doc]
    pairs = [(f"{name}.{member[0]}", member[1]) if isinstance(member, tuple) else (name, member) for member in members]
    for full_name, text in pairs:
        if isinstance(text, str) and not full_name.rpartition(".")[2].startswith("_"):
            definition = _definition(full_name, full_name.rpartition(".")[2], inspect.cleandoc(text))
            module.added.setdefault((place, full_name), definition)
