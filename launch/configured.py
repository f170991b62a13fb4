"""Gin flags as T5X has them, for the programs that make a system: `--gin_file=FILE --gin.NAME=value`."""

from __future__ import annotations

import difflib
import io
import os
import pathlib
import re
import tokenize
from collections.abc import Iterable

import gin
from absl import flags

from gr_jax import processes, systems
from gr_jax.errors import InputError
from gr_jax.retrievers import Searcher

from . import hosts, program
from . import show as _show  # noqa: F401  gin files name it, whichever program reads them

# What has gin_configs/: the checkout, or the package gr_jax where that is installed.
CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
GIN_FILE = flags.DEFINE_multi_string("gin_file", [], "A gin file; later files override earlier ones.")
GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings", [], "One binding, over those of all files; `--gin.NAME=value` says the same. Texts are in quotes: "
    '--gin.MODEL_DIR=\\"runs/mine\\"'
)  # fmt: skip
flags.adopt_module_key_flags(hosts)
_PLACES = 3  # of a problem that are named: files include files


def run_system(until: str = "") -> Searcher | None:
    """Reads gin's files and flags, and makes the system that they name; see `System.run`."""
    hosts.refuse_unused()
    if not GIN_FILE.value and not GIN_BINDINGS.value:
        raise InputError(
            "no configuration is named",
            "Name one by --gin_file=gin_configs/systems/NAME.gin; gr-jax recipe --list shows them.",
        )
    read_gin()
    if "system" not in gin.get_bindings(systems.run.run, resolve_references=False):
        raise InputError(
            "run.system names no system",
            "Begin with --gin_file=gin_configs/systems/NAME.gin; gr-jax recipe --list shows them.",
        )
    program.stop_on_sigterm()
    if hosts.HOSTS.value:
        hosts.start(hosts.found(hosts.HOSTS.value, os.environ))
        if processes.count() == 1:
            program.stop_on_sigterm()  # JAX has taken the signal, and asks nobody where there is one process
        hosts.agree(gin.config_str())
    return systems.run.run(until=until)


def model_dir() -> str | os.PathLike:
    """Where the system that was read is made."""
    return gin.get_bindings(systems.run.run, resolve_references=True)["model_dir"]


def read_gin() -> None:
    """Parses the gin files and bindings of the command line.

    Raises:
      InputError: a file is not there, a name is misspelt, a value does not parse; says what and where.
    """
    gin.add_config_file_search_path(str(CHECKOUT))
    for name in GIN_FILE.value:
        if not any((root / name).is_file() for root in (pathlib.Path.cwd(), CHECKOUT)):
            known = ", ".join(sorted(str(p.relative_to(CHECKOUT)) for p in CHECKOUT.glob("gin_configs/**/*.gin")))
            raise InputError("no such gin file", f"Name one of: {known}; or a file of your own.", file=name)
    try:
        # Finalised it would want macros that nothing reads: of documents, say, that another file replaces.
        gin.parse_config_files_and_bindings(GIN_FILE.value, GIN_BINDINGS.value, finalize_config=False)
        gin.config.validate_macros_hook(gin.config._CONFIG)
    except Exception as error:  # gin passes on what a file that it reads or a module that it imports may raise
        raise _misread(error) from error
    _refuse_circles()
    config = gin.config_str()
    for name in re.findall(r"^(\w+) = ", config, re.MULTILINE):  # gin itself takes any name for a macro's
        if not re.search(rf"%{name}\b", config):
            used = ", ".join(sorted({*re.findall(r"%([A-Z]\w*)", config)}))
            raise InputError("nothing uses the macro of this name", f"Correct it; these are used: {used}.", value=name)
    for name in _missing():
        raise InputError(
            f"the macro {name} has no value", f"Give it one: --gin.{name}=…, as the head of the file says."
        )


def _refuse_circles() -> None:
    """Raises InputError for macros that are defined by each other: gin would look their value up for ever."""
    defined = {}
    for (scope, selector), bound in gin.config._CONFIG.items():
        if selector == "gin.macro":
            references = gin.config.iterate_references(bound)
            defined[scope] = {one.scoped_selector.rpartition("/")[0] for one in references if one.selector == selector}
    while defined:  # take away those that rest on others no longer in question
        settled = [name for name, others in defined.items() if not others & defined.keys()]
        if not settled:
            names = ", ".join(sorted(defined))
            raise InputError("macros are defined by each other", f"Give one of them a value: {names}.")
        for name in settled:
            del defined[name]


def _missing() -> list[str]:
    """The macros without a value that something reads: what runs, and of sources of documents the one that it names."""
    source = gin.get_bindings(systems.run.run, resolve_references=False).get("source")
    wanted = getattr(getattr(source, "configurable", None), "wrapped", None)
    names = []
    for (_, selector), bound in gin.config._CONFIG.items():
        there = gin.config._REGISTRY[selector].wrapped
        if hasattr(there, "load") and there is not wanted:
            continue
        references = gin.config.iterate_references(bound)
        names += [one.scoped_selector.rpartition("/")[0] for one in references if one.selector == "gin.macro"]
    return [name for name in dict.fromkeys(names) if _required(name)]


def _required(macro: str) -> bool:
    value = gin.config._CONFIG.get((macro, "gin.macro"), {}).get("value")
    return getattr(value, "scoped_selector", "") == "gin.REQUIRED/gin.constant"


def _is_whole(binding: str) -> bool:
    """Whether a binding ends where it ends: no bracket or text is open."""
    try:
        list(tokenize.generate_tokens(io.StringIO(binding).readline))
    except tokenize.TokenError:
        return False
    return True


def _misread(error: Exception) -> InputError:
    """What gin could not read: the cause, where it stands, and what it may be meant to be."""
    said = str(error.args[0] if isinstance(error, KeyError | tokenize.TokenError) and error.args else error)
    said = re.sub(r"No bindings specified for '(.*)/gin.macro'", r"No macro is called \1", said)
    cause, *where = said.split("\n  In ")
    cause = _one_line(re.sub(r" in config string: .*", "", cause, flags=re.DOTALL)).rstrip(".")
    if isinstance(error, RecursionError):
        cause = "files include each other, or a value is nested too deeply"
    elif not isinstance(error, ValueError | SyntaxError | TypeError | KeyError | OSError):
        cause = f"{type(error).__name__}: {cause}"
    given = [*GIN_FILE.value, *(f"--gin.{binding}" for binding in GIN_BINDINGS.value)]
    places = [_place(one) for one in where] or [", ".join([*given[:_PLACES], *["…"] * (len(given) > _PLACES)])]
    places = list(dict.fromkeys(places))
    if isinstance(error, tokenize.TokenError):  # it says no line of all bindings together
        places = [f"--gin.{one}" for one in GIN_BINDINGS.value if not _is_whole(one)] or places
    if isinstance(error, SyntaxError):
        cause = re.sub(r"(?s)^malformed node or string.*token ('.*')$", r"\1 is no value", error.msg.rstrip("."))
        line = error.lineno or 0
        if error.filename:
            places = [f"{error.filename}:{line}"]
        elif 0 < line <= len(GIN_BINDINGS.value):
            places = [f"--gin.{GIN_BINDINGS.value[line - 1]}"]
    shown = [*places[:_PLACES], *["others"] * (len(places) > _PLACES)]
    return InputError(f"{cause}: {', which is included by '.join(shown)}", _remedy(error, cause, said))


def _place(said: str) -> str:
    """One line of gin's where: a file with its line, or a flag."""
    found = re.match(r'file "(.*)", line (\d+)\s*(.*)', said, re.DOTALL)
    if found:
        code = re.sub(r"\s*\^\s*$", "", found[3])
        return f"{found[1]}:{found[2]}" + (f" ({_one_line(code)})" if code.strip() else "")
    return f"--gin.{_one_line(re.sub(r'.*line [0-9]+|[ ^]*$', '', said, count=2))}"


def _remedy(error: Exception, cause: str, said: str) -> str:
    wrong = re.search(r"No configurable matching (?:reference )?'@?([^']*)'", cause)
    if wrong and re.search(r"run\.system\s*=", said):
        return _suggestion(wrong[1], (one.__name__ for one in systems.SYSTEMS))
    if wrong:
        known = (name.rpartition(".")[2] for name, _ in gin.config._REGISTRY.items())
        return _suggestion(wrong[1].rpartition("/")[2], known)
    wrong = re.search(r"Configurable '([^']*)' doesn't have a parameter named '([^']*)'", cause)
    if wrong:
        return _suggestion(wrong[2], _parameters(wrong[1]))
    if isinstance(error, SyntaxError | tokenize.TokenError):
        return 'Give a value as Python writes it, texts in quotes: --gin.MODEL_DIR=\\"runs/mine\\".'
    return "Correct that name or value; every file of gin_configs/ says in its head what it takes."


def _suggestion(wrong: str, known: Iterable[str]) -> str:
    names = sorted({*known} - {"macro", "constant", "singleton"})
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(near)}?" if near else f"Name one of: {', '.join(names)}."


def _parameters(name: str) -> list[str]:
    """What gin can bind of something."""
    import inspect

    found = gin.config._REGISTRY.get_match(name)
    return [one for one in inspect.signature(found.wrapped).parameters if one not in (found.denylist or ())]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
