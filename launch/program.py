"""What every entry point shares: help that exits 0, and errors that are sentences, not tracebacks."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence

from absl import app, flags

from gr_jax import processes
from gr_jax.errors import InputError, InputWarning

from . import signs


def rewrite_gin_flags(argv: Sequence[str]) -> list[str]:
    """Turns T5X's `--gin.NAME=value` into `--gin_bindings=NAME=value`; what stands behind "--" stays as it is."""
    own = _own(argv)
    turned = [f"--gin_bindings={arg.removeprefix('--gin.')}" if arg.startswith("--gin.") else arg for arg in own]
    return [*turned, *argv[len(own) :]]


def refuse_unused(names: Iterable[str], why: str, remedy: str = "Leave it out.") -> None:
    """Refuses flags that would be passed over without a word.

    Args:
      names: of the flags.
      why: they are not used, behind "--NAME is not used".
      remedy: see `InputError`.

    Raises:
      InputError: one of them was given.
    """
    for name in names:
        if flags.FLAGS[name].present:
            raise InputError(f"--{name} is not used {why}", remedy, value=flags.FLAGS[name].value)


def run(main: Callable[..., None]) -> None:
    """Runs `main` under absl; an InputError or a gin error ends it with exit code 2 and its sentence alone."""

    def guarded(argv: list[str]) -> None:
        if len(argv) > 1 and not getattr(main, "takes_words", False):
            _stop(InputError("an argument that no flag takes", "See --help for the flags.", value=argv[1]))
        try:
            main() if not getattr(main, "takes_words", False) else main(argv[1:])
        except InputError as error:
            _stop(error)
        except (ValueError, TypeError, RuntimeError) as error:
            if not _is_gin(error):
                raise
            _stop(
                InputError(
                    f"the configuration is incomplete or wrong: {' '.join(str(error).split())[:300]}",
                    "Give each macro that is REQUIRED on the command line, as --gin.NAME=value.",
                )
            )
        except processes.Stopped as stopped:
            print(f"\n{stopped}", file=sys.stderr)
            raise
        except KeyboardInterrupt:
            print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
            sys.exit(130)

    show = warnings.showwarning

    def note(message, category, *where) -> None:
        if issubclass(category, InputWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *where)

    warnings.showwarning = note  # type: ignore[assignment]
    # absl shows INFO; that JAX found no TPU on a laptop is nobody's news.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    # Nor are the places where gin looks in vain before it finds a file.
    logging.getLogger().addFilter(lambda record: record.module != "resource_reader")
    signs.give()
    app.run(guarded, argv=rewrite_gin_flags(sys.argv), flags_parser=_parse)


def stop_on_sigterm() -> None:
    """SIGTERM ends this process where it can go on later. Of several processes JAX itself listens for it."""
    signal.signal(signal.SIGTERM, processes.ask_to_stop)


def python() -> str:
    """This interpreter, as it is called from here: the environment of `make quickstart` is not activated."""
    path = pathlib.Path(sys.executable)
    return os.path.relpath(path) if path.is_relative_to(pathlib.Path.cwd()) else "python"


def command(name: str) -> str:
    """A program as it is called from here: `gr-jax NAME`, where that is on PATH."""
    return f"gr-jax {name}" if shutil.which("gr-jax") else f"{python()} -m {module(name)}"


def module(name: str) -> str:
    """The module of a program: launch.NAME in a checkout, gr_jax.launch.NAME where that is installed."""
    return f"{__package__}.{name}"


def _parse(argv: Sequence[str]) -> list[str]:
    """The words that are no flags; help ends the program as a success, and an unknown flag with a sentence."""
    asked = [arg.lstrip("-") for arg in _own(argv)[1:] if arg.startswith("-")]
    if {"help", "helpshort", "h", "?"} & {*asked}:
        app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
    if "helpfull" in asked:
        app.usage(writeto_stdout=True, exitcode=0)
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        _stop(InputError(" ".join(str(error).split()).rstrip("."), "See --help for the flags."))
        raise  # not reached


def _own(argv: Sequence[str]) -> Sequence[str]:
    """What is for this program; behind "--" stands the command of another."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _is_gin(error: Exception) -> bool:
    """Whether gin raised it for want of a value: it has no exception classes of its own, only these words."""
    return any(words in str(error) for words in ("Required bindings for", "No values supplied by Gin or caller"))


def _stop(error: InputError) -> None:
    # gin appends through which configurables an exception came; the sentence says all that a user needs.
    print(f"error: {str(error).split(chr(10) + '  In call to configurable')[0]}", file=sys.stderr)
    sys.exit(2)
