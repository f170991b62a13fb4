"""Where arrays lie on the devices: a mesh (data, model) and T5X's logical axis rules.

Networks name the axes of their parameters and activations ("vocab", "embed", "mlp", …) with
`flax.linen.partitioning`; a set of rules says on which mesh axis each name lies. Tables of a vocabulary, and whatever
is split for the sake of memory alone, lie padded with zeros where the mesh does not divide them (`padded_shape`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as flax_partitioning
from flax.traverse_util import flatten_dict
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gr_jax.errors import InputError

Axes = tuple[str | None, ...]
Rules = tuple[tuple[str, str | None], ...]

# T5X's standard rules for one-dimensional parameter partitioning, and one name that is not T5X's: whose partitioner is
# used with these networks adds it, or those tables stay whole.
LOGICAL_AXIS_RULES: Rules = (
    ("batch", "data"),
    ("vocab", "model"),
    ("written_vocab", "model"),  # of a decoder's own: docids, titles, what is contextual
    ("mlp", "model"),
    ("heads", "model"),
    ("joined_kv", "model"),
    ("embed", None),
    ("kv", None),
    ("length", None),
    ("relpos_buckets", None),
    ("abspos_buckets", None),
    ("layers", None),
    ("stack", None),
)
# "data": only batches are split. "tensor": layers and tables over the model axis, too. "fsdp": all that, and parameters
# and optimiser state over the data axis, which saves memory and costs communication.
RULE_SETS: dict[str, Rules] = {
    "data": tuple((name, "data" if name == "batch" else None) for name, _ in LOGICAL_AXIS_RULES),
    "tensor": LOGICAL_AXIS_RULES,
    "fsdp": tuple((name, "data" if name == "embed" else axis) for name, axis in LOGICAL_AXIS_RULES),
}
# Whose parts are computed with: padding one would be another network.
_NOT_PADDED = ("mlp", "heads", "joined_kv")

# For parameters that carry no names (another library's modules): what T5X's names would be, by path.
_AXES_BY_PATH: tuple[tuple[str, Axes], ...] = (
    (r".*embed[^/]*/embedding", ("vocab", "embed")),
    (r".*/(query|key|value)/kernel", ("embed", "joined_kv")),
    (r".*attention.*/(out|o)/kernel", ("joined_kv", "embed")),
    (r".*/wi(_\d+)?/kernel", ("embed", "mlp")),
    (r".*/wo/kernel", ("mlp", "embed")),
    (r".*logits_dense/kernel", ("embed", "vocab")),
    (r"(.*/)?copy_bias", ("vocab",)),
)


def make_mesh(data: int = 0, model: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with axes ("data", "model").

    Args:
      data: parts that a batch is split into; 0 takes all devices that `model` leaves.
      model: parts that layers are split into.
      devices: which to use; None takes the first `data * model` of all.

    Raises:
      InputError: there are not that many devices.
    """
    found = list(jax.devices() if devices is None else devices)
    if model < 1 or data < 0 or (data or 1) * model > len(found):
        raise InputError(
            f"a mesh of data={data} × model={model} does not fit on {len(found)} devices",
            "Choose axes whose product is at most the number of devices.",
            value=(data, model),
        )
    data = data or len(found) // model
    return Mesh(
        np.array(found[: data * model]).reshape(data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2
    )


def all_devices() -> Mesh | None:
    """A mesh that splits batches over all devices of this host; None where there is one."""
    count = len(jax.local_devices())
    return make_mesh(count, devices=jax.local_devices()) if count > 1 else None


def logical_axes(shapes: Mapping[str, tuple[int, ...]], params_axes: Mapping[str, Any] | None) -> dict[str, Axes]:
    """The axis names of every parameter.

    Args:
      shapes: path "a/b/c" → shape.
      params_axes: the collection that `param_with_axes` fills, nested; None or {} where a model has none.

    Returns:
      path → one name (or None: not split) per dimension; parameters without names get them by path, or none.
    """
    named: dict[str, Axes] = {}
    if params_axes:
        for path, metadata in flatten_dict(dict(params_axes)).items():
            named["/".join(path).removesuffix("_axes")] = tuple(metadata.names)
    result = {}
    for path, shape in shapes.items():
        by_path = (axes for pattern, axes in _AXES_BY_PATH if re.fullmatch(pattern, path))
        axes = named.get(path) or next(by_path, (None,) * len(shape))
        result[path] = axes if len(axes) == len(shape) else (None,) * len(shape)
    return result


def rules_for(
    mesh: Mesh, shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, Axes], sharding: str = "tensor"
) -> Rules:
    """The set of rules of this name, for this model on this mesh.

    Args:
      mesh: the mesh.
      shapes, axes: of the parameters, by path.
      sharding: one of `RULE_SETS`.

    Raises:
      InputError: an unknown set, or the mesh does not divide what cannot be padded.
    """
    if sharding not in RULE_SETS:
        raise InputError("unknown set of sharding rules", f"Use one of {', '.join(RULE_SETS)}.", value=sharding)
    rules = RULE_SETS[sharding]
    if sharding == "data" and mesh.shape["model"] > 1:
        raise InputError(
            f'sharding="data" splits nothing over the {mesh.shape["model"]} devices of the model axis',
            'Use a mesh with model=1, or sharding="tensor" or "fsdp".',
            value=dict(mesh.shape),
        )
    on = dict(rules)
    for path, shape in shapes.items():
        for name, size in zip(axes[path], shape, strict=True):
            axis = on[name] if name is not None and name in _NOT_PADDED else None
            parts = 1 if axis is None else mesh.shape[axis]
            if size % parts:
                fit = [n for n in range(1, parts + 1) if size % n == 0]
                raise InputError(
                    f"{path}: its {size} {name} cannot be split over {parts} devices, nor padded",
                    f"Use a mesh whose {axis} axis divides them: {', '.join(map(str, fit))}.",
                    value=dict(mesh.shape),
                )
    return rules


def padded_shape(shape: tuple[int, ...], sharding: NamedSharding) -> tuple[int, ...]:
    """The least shape that the devices divide."""
    parts = [1 if axis is None else sharding.mesh.shape[axis] for axis in sharding.spec]
    return tuple(-(-size // n) * n for size, n in zip(shape, [*parts, *[1] * len(shape)], strict=False))


def pad(value: Any, shape: tuple[int, ...]) -> Any:
    """An array with zeros behind it on every axis; NumPy's stay NumPy's."""
    if value.shape == shape:
        return value
    behind = [(0, new - old) for old, new in zip(value.shape, shape, strict=True)]
    return np.pad(value, behind) if isinstance(value, np.ndarray) else jnp.pad(value, behind)


def cut(value: Any, shape: tuple[int, ...]) -> Any:
    """`pad` undone. Of an array that lies on devices a NumPy array, where all of them are this process' own."""
    if value.shape == shape:
        return value
    part = tuple(slice(size) for size in shape)
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return value[part]
    if value.is_fully_addressable:
        return np.asarray(value)[part]
    assert isinstance(value.sharding, NamedSharding)
    return _cut_whole(value.sharding.mesh, shape)(value)


@functools.cache
def _cut_whole(mesh: Mesh, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """Kept, so that no save compiles it again."""
    part = tuple(slice(size) for size in shape)
    return jax.jit(lambda x: x[part], out_shardings=NamedSharding(mesh, PartitionSpec()))


def parameter_shardings(mesh: Mesh, axes: Mapping[str, Axes], rules: Rules) -> dict[str, NamedSharding]:
    """Where every parameter lies, by path."""
    known = {name for name, _ in rules}
    shardings = {}
    for path, names in axes.items():
        spec = flax_partitioning.logical_to_mesh_axes([n if n in known else None for n in names], rules)
        shardings[path] = NamedSharding(mesh, spec or PartitionSpec())
    return shardings


def state_shardings(state: Any, mesh: Mesh, parameters: Mapping[str, NamedSharding]) -> Any:
    """Where optimiser state lies: what has a parameter's path and shape, with the parameter; the rest is replicated.

    Adafactor's factored moments are vectors, and small; they are replicated.

    Args:
      state: optimiser state over a flat {path: parameter} dict, arrays or shapes.
    """
    whole = NamedSharding(mesh, PartitionSpec())

    def place(key_path: tuple, leaf: Any) -> NamedSharding:
        for key in reversed(key_path):
            sharding = parameters.get(getattr(key, "key", None))  # type: ignore[arg-type]
            if sharding is not None:
                return sharding if divides(sharding, leaf.shape) else whole
        return whole

    return jax.tree_util.tree_map_with_path(place, state)


def divides(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether a sharding names every axis of an array of this shape, and its devices divide them."""
    spec = sharding.spec
    if len(spec) != len(shape):
        return False
    return all(axis is None or size % sharding.mesh.shape[axis] == 0 for axis, size in zip(spec, shape, strict=True))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are split over the data axis."""
    return NamedSharding(mesh, PartitionSpec("data"))


@contextlib.contextmanager
def on_mesh(mesh: Mesh, rules: Rules) -> Iterator[None]:
    """Inside, networks that are traced follow the rules for their activations."""
    with jax.set_mesh(mesh), flax_partitioning.axis_rules(rules):
        yield
