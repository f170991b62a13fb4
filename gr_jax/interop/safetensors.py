"""Safetensors folders: every tensor by name, or an error that says which file, tensor or parameter is at fault."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.interop.huggingface_names import Entry

_AGAIN = "Download or copy the file again; it must be a safetensors file as `save_pretrained` writes it."


class TensorFolder:
    """The tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` lists.

    Args:
      folder: where they lie.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self._file_of: dict[str, pathlib.Path] = {}
        for file in self._files():
            for name in _read_names(file):
                self._file_of[name] = file

    @property
    def names(self) -> Iterable[str]:
        """Of all tensors."""
        return self._file_of.keys()

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """One tensor as float32.

        Raises:
          InputError: it is absent, of another shape than the configuration asks for, unreadable or not finite.
        """
        from safetensors import SafetensorError, safe_open

        if name not in self._file_of:
            raise InputError(
                f"there is no tensor {name!r}",
                "The weights must be those of the model that config.json describes.",
                file=self.folder,
            )
        file = self._file_of[name]
        try:
            with safe_open(file, framework="np") as tensors:
                found = tuple(tensors.get_slice(name).get_shape())
                if found != shape:
                    raise InputError(
                        f"tensor {name!r} has shape {found} where config.json asks for {shape}",
                        "The weights must be those of the model that config.json describes.",
                        file=file,
                    )
                kind = str(tensors.get_slice(name).get_dtype())
                if kind not in ("F64", "F32", "F16", "BF16"):
                    raise InputError(
                        f"the values of tensor {name!r} are not numbers of a floating type",
                        _AGAIN,
                        file=file,
                        value=kind,
                    )
                if kind == "BF16":
                    array = _read_bfloat16(file, name, shape)
                else:
                    array = tensors.get_tensor(name)
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"tensor {name!r} cannot be read: {error}", _AGAIN, file=file) from error
        array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise InputError(f"tensor {name!r} has values that are not finite", _AGAIN, file=file)
        return array

    def _files(self) -> list[pathlib.Path]:
        single, index = self.folder / "model.safetensors", self.folder / "model.safetensors.index.json"
        if single.is_file():
            return [single]
        if not index.is_file():
            raise InputError(
                "no weights: neither model.safetensors nor model.safetensors.index.json is here",
                "Name a folder with safetensors weights; a pytorch_model.bin must first be converted "
                "(`save_pretrained(..., safe_serialization=True)`).",
                file=self.folder,
            )
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InputError("it has no weight_map", _AGAIN, file=index)
        files = [
            self.folder / name for name in sorted({pathlib.PurePath(str(name)).name for name in weight_map.values()})
        ]
        for file in files:
            if not file.is_file():
                raise InputError("a file that the index lists is missing", "Copy the folder again whole.", file=file)
        return files


def write_tensors(folder: str | os.PathLike, entries: Iterable[Entry], params: Any) -> None:
    """Writes parameters as the tensors that `entries` names, into `model.safetensors`.

    Raises:
      InputError: a parameter is absent or has another shape.
    """
    from safetensors.numpy import save

    tensors = named_tensors(entries, params)
    storage.write_bytes(pathlib.Path(folder) / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def named_tensors(entries: Iterable[Entry], params: Any) -> dict[str, np.ndarray]:
    """Parameters by the names of tensors that `entries` gives them, in the layout of PyTorch.

    Raises:
      InputError: a parameter is absent or has another shape.
    """
    tensors = {}
    for path, name, shape, transposed in entries:
        leaf: Any = params
        for key in path:
            if not hasattr(leaf, "keys") or key not in leaf:
                raise InputError(
                    f"the parameters have no {'/'.join(path)}",
                    "Give the configuration that they were made with; of an EncoderDecoder only a plain T5 (one "
                    "vocabulary, no query_residual) can be written.",
                )
            leaf = leaf[key]
        array = np.asarray(leaf, np.float32)
        array = np.ascontiguousarray(array.T if transposed else array)
        if array.shape != shape:
            raise InputError(
                f"parameter {'/'.join(path)} has the wrong shape for this configuration",
                "Give the configuration that the parameters were made with.",
                value=array.shape,
            )
        tensors[name] = array
    return tensors


def read_json(file: pathlib.Path) -> dict:
    """A JSON object.

    Raises:
      InputError: the file is missing or is not one.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no such file", "Name a folder as Hugging Face lays it out.", file=file) from error
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"not readable as JSON: {error}", "Copy the file again whole.", file=file) from error
    if not isinstance(value, dict):
        raise InputError("not a JSON object", "Copy the file again whole.", file=file)
    return value


def _read_names(file: pathlib.Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"not a whole safetensors file: {error}", _AGAIN, file=file) from error


def _read_bfloat16(file: pathlib.Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """NumPy has no bfloat16: its bits are the upper half of a float32's."""
    with open(file, "rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        begin, end = json.loads(stream.read(header_size))[name]["data_offsets"]
        stream.seek(8 + header_size + begin)
        bits = np.frombuffer(stream.read(end - begin), "<u2")
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape)
