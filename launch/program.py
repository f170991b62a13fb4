"""What every entry point shares: gin flags as T5X has them, and errors that are sentences, not tracebacks."""

from __future__ import annotations

import logging
import pathlib
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Sequence

import gin
from absl import app, flags

from gr_jax.errors import InputError, InputWarning

_GIN_FILE = flags.DEFINE_multi_string("gin_file", [], "A gin file; later files override earlier ones.")
_GIN_BINDINGS = flags.DEFINE_multi_string("gin_bindings", [], "One binding; `--gin.NAME=value` says the same.")
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent


def rewrite_gin_flags(argv: Sequence[str]) -> list[str]:
    """Turns T5X's `--gin.NAME=value` into `--gin_bindings=NAME=value`."""
    return [f"--gin_bindings={arg.removeprefix('--gin.')}" if arg.startswith("--gin.") else arg for arg in argv]


def read_gin() -> None:
    """Parses the gin files and bindings of the command line.

    Raises:
      InputError: a file is not there, a name is misspelt, a value does not parse; names the file and line.
    """
    import launch.show  # noqa: F401  a recipe's gin files name it, whichever of its programs reads them

    gin.add_config_file_search_path(str(_CHECKOUT))
    for name in _GIN_FILE.value:
        if not any((root / name).is_file() for root in (pathlib.Path.cwd(), _CHECKOUT)):
            known = ", ".join(sorted(str(p.relative_to(_CHECKOUT)) for p in _CHECKOUT.glob("gin_configs/**/*.gin")))
            raise InputError("no such gin file", f"Name one of: {known}; or a file of your own.", file=name)
    try:
        gin.parse_config_files_and_bindings(_GIN_FILE.value, _GIN_BINDINGS.value)
    except (ValueError, SyntaxError, TypeError, KeyError, OSError, tokenize.TokenError) as error:
        raise InputError(
            f"the configuration cannot be read: {_first_line(error)}",
            "Correct that name or value; every file of gin_configs/ lists in its head what it takes.",
            file=", ".join([*_GIN_FILE.value, *(f"--gin.{b}" for b in _GIN_BINDINGS.value)]),
        ) from error
    config = gin.config_str()
    for name in re.findall(r"^(\w+) = ", config, re.MULTILINE):  # gin itself takes any name for a macro's
        if not re.search(rf"%{name}\b", config):
            used = ", ".join(sorted({*re.findall(r"%([A-Z]\w*)", config)}))
            raise InputError("nothing uses the macro of this name", f"Correct it; these are used: {used}.", value=name)


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
                    f"the configuration is incomplete or wrong: {_first_line(error)}",
                    "Give each macro that is REQUIRED on the command line, as --gin.NAME=value.",
                )
            )
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
    app.run(guarded, argv=rewrite_gin_flags(sys.argv))


def _is_gin(error: Exception) -> bool:
    """Whether gin raised it for want of a value: it has no exception classes of its own, only these words."""
    return any(words in str(error) for words in ("Required bindings for", "No values supplied by Gin or caller"))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _stop(error: InputError) -> None:
    # gin appends through which configurables an exception came; the sentence says all that a user needs.
    print(f"error: {str(error).split(chr(10) + '  In call to configurable')[0]}", file=sys.stderr)
    sys.exit(2)
