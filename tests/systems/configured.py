"""Systems as gin's files and bindings make them."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import gin

import launch.show  # noqa: F401  gin files name it
from gr_jax import systems
from gr_jax.systems import System, configuration

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# What some of the files require.
MACROS = {
    "CORPUS": "mine", "MODEL_DIR": "runs/mine", "T5": "t5", "BERT": "bert", "T5_BASE": "t5_base",
    "BERT_BASE": "bert_base", "GENERATED": "generated", "TEACHER": "runs/teacher",
}  # fmt: skip


@contextlib.contextmanager
def parsed(*files: str, bindings: Sequence[str] = (), macros: Mapping[str, str] = MACROS) -> Iterator[None]:
    """With gin's configuration of these files, "systems/gdr" for gin_configs/systems/gdr.gin, macros and bindings."""
    gin.clear_config()
    before = os.getcwd()
    os.chdir(CHECKOUT)
    try:
        given = [f'{name} = "{value}"' for name, value in macros.items()]
        named = [f"gin_configs/{name}.gin" for name in files]
        gin.parse_config_files_and_bindings(named, [*given, *bindings], finalize_config=False)
        yield
    finally:
        os.chdir(before)
        gin.clear_config()


def resolved(*files: str, bindings: Sequence[str] = (), macros: Mapping[str, str] = MACROS) -> System:
    """The system that they make."""
    with parsed(*files, bindings=bindings, macros=macros):
        return as_bound()


def as_bound() -> System:
    """The system that gin's configuration makes as it stands."""
    named = gin.get_bindings(systems.run.run, resolve_references=False)["system"].configurable.wrapped
    return configuration.from_gin(named, configuration.registered(System))


def read_back(text: str) -> System:
    """The system that a written configuration makes."""
    gin.clear_config()
    try:
        gin.parse_config(text)
        return as_bound()
    finally:
        gin.clear_config()
