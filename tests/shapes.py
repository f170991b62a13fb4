"""Shapes in signatures are checked while tests run, by jaxtyping's import hook over `gr_jax`.

When a function returns, the arrays that it was given and those that it returns must have the shapes and kinds of
numbers that its signature says. An axis has one length in one call. Other annotations are mypy's. So is whether an
array is NumPy's or JAX's: JAX's functions take both.

The checker is not beartype or typeguard because they look before the call, where many tests give a wrong shape and
expect the function's own `InputError`. Functions within functions are not checked: they would be decorated anew in
every call. Neither are fields of dataclasses, for pytrees hold anything while JAX takes them apart.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import jaxtyping

_ARRAYS = re.compile(r"\b(Float|Int|UInt|Bool|Num|Shaped|Inexact|Real|Integer)\d*\[")
_ANY_AXES = re.compile(rf"({_ARRAYS.pattern}[\w.]+, )\.\.\.\]")


class ShapeError(Exception):
    """An array is not what a signature says."""


def install(modules: str = "gr_jax") -> None:
    """Checks what is imported of these modules from now on."""
    jaxtyping.jaxtyped = _decorator(jaxtyping.jaxtyped)
    jaxtyping.install_import_hook(modules, None)


def checked(function: Callable, context: Callable) -> Callable:
    """The function, whose arrays are looked at when it has returned.

    Args:
      function: of a module or a class.
      context: `jaxtyping.jaxtyped`, whose context remembers the lengths of axes.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    several = {one.name for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    written = {name: one for name, one in function.__annotations__.items() if _ARRAYS.search(str(one))}
    for name in several | ({"return"} if inspect.isgeneratorfunction(function) else set()):
        written.pop(name, None)
    annotations: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        if written and not annotations:
            annotations.update(_evaluated(written, function.__globals__))
        given = dict(zip(names, args, strict=False)) | kwargs | {"return": returned}
        with context("context"):
            for name, annotation in annotations.items():
                if name in given and not fits(given[name], annotation):
                    raise ShapeError(_message(function, name, given, annotations))
        return returned

    return call


def fits(value: Any, annotation: Any) -> bool:
    """Whether the arrays in a value are those of the annotation; whatever is no array fits."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return not _is_array(value) or isinstance(value, _any_library(annotation))
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return not _is_array(value) or any(_is_one_of(value, part) for part in parts)
    if origin is tuple and Ellipsis not in parts and isinstance(value, tuple) and len(value) == len(parts):
        return all(fits(one, part) for one, part in zip(value, parts, strict=True))
    return True


def _decorator(original: Callable) -> Callable:
    def jaxtyped(function: Any = None, *, typechecker: Any = None) -> Any:
        if isinstance(function, str):
            return original(function)
        if function is None:
            return functools.partial(jaxtyped, typechecker=typechecker)
        if not isinstance(function, types.FunctionType) or "<locals>" in function.__qualname__:
            return function
        if not any(_ARRAYS.search(str(annotation)) for annotation in function.__annotations__.values()):
            return function
        return checked(function, original)

    return jaxtyped


def _evaluated(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations, from their texts where they are texts; what names an import for type checkers alone is left out."""
    found = {}
    for name, annotation in annotations.items():
        try:
            # Linters take the quotes from "...", which jaxtyping wants.
            written = _ANY_AXES.sub(r'\1"..."]', annotation) if isinstance(annotation, str) else annotation
            found[name] = eval(written, dict(names)) if isinstance(written, str) else written
        except NameError:
            continue
    return found


@functools.cache
def _any_library(annotation: Any) -> Any:
    return annotation.dtype[Any, annotation.dim_str]


def _is_one_of(value: Any, part: Any) -> bool:
    """Whether an array is what one part of a union says."""
    if _ARRAYS.search(str(part)):
        return fits(value, part)
    return isinstance(part, type) and isinstance(value, part)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _message(function: Callable, name: str, given: Mapping[str, Any], annotations: Mapping[str, Any]) -> str:
    shown = {
        one: f"{annotation}: {getattr(given[one], 'dtype', '')}{getattr(given[one], 'shape', type(given[one]))}"
        for one, annotation in annotations.items()
        if one in given
    }
    return f"{name} of {function.__module__}.{function.__qualname__} is not what its signature says: {shown}"
