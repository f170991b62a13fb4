"""What training changes, and one update of it.

Parameters are flat dicts {"a/b/c": array}, split into those that learn and those that are frozen: gradients are taken
with respect to the first only, so nothing is computed or remembered for a frozen embedding table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gr_jax.errors import InputError
from gr_jax.models import half_precision
from gr_jax.models import remat as remat_lib
from gr_jax.training import partitioning
from gr_jax.training.optimizers import Optimizer

Params = Mapping[str, Any]
Flat = dict[str, Any]


class Model(Protocol):
    """What can be trained: T5X's methods."""

    def loss_fn(self, params: Params, batch: Mapping[str, jax.Array], dropout_rng: jax.Array | None) -> tuple: ...

    def get_initial_variables(
        self, rng: jax.Array, input_shapes: Mapping, input_types: Mapping | None = None
    ) -> Any: ...


@flax.struct.dataclass
class TrainState:
    """What one update reads and writes: arrays, or in the same structure their shapes or shardings.

    Attributes:
      step: updates so far, int32 scalar.
      params: the parameters that learn, flat.
      opt_state: of the optimiser, over the same paths.
    """

    step: Any
    params: Flat
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A model, its optimiser and their place on the devices; makes states and the update.

    Attributes:
      model: what is trained.
      optimizer: how.
      mesh, rules: where.
      factors: learning-rate factor of every parameter; 0 is frozen.
      shardings: of every parameter, by path.
      shapes: of every parameter, by path, as the model has it.
      padded: of those that lie padded with zeros, by path. Nothing is learnt there: the model never sees it.
    """

    model: Model
    optimizer: Optimizer
    mesh: Mesh
    rules: partitioning.Rules
    factors: Mapping[str, float]
    shardings: Mapping[str, NamedSharding]
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    padded: Mapping[str, tuple[int, ...]]
    transformation: optax.GradientTransformation
    state_shardings: TrainState
    _initial: Callable[[jax.Array], Flat]

    @classmethod
    def create(
        cls,
        model: Model,
        optimizer: Optimizer,
        mesh: Mesh,
        input_shapes: Mapping[str, tuple[int, ...]],
        *,
        sharding: str = "tensor",
        precision: str = "float32",
        remat: str | None = None,
    ) -> Trainer:
        """Asks the model for the shapes and axes of its parameters and decides where they lie.

        Args:
          model, optimizer, mesh: see the class.
          input_shapes: of a batch.
          sharding: one of `partitioning.RULE_SETS`.
          precision: "float32" computes as the model says; "bfloat16" in that, with parameters of float32.
          remat: what is computed again instead of remembered: see `models.remat.POLICIES`.

        Raises:
          InputError: an unknown choice, a model that has no precision to set, or see `partitioning.rules_for`.
        """
        model = remat_lib.recomputing(half_precision.with_precision(model, precision), remat)

        def variables(rng: jax.Array) -> Any:
            return model.get_initial_variables(rng, input_shapes, None)

        described = jax.eval_shape(variables, jax.random.key(0))
        shapes = flatten(described["params"])
        plain = {path: leaf.shape for path, leaf in shapes.items()}
        axes = partitioning.logical_axes(plain, described.get("params_axes"))
        rules = partitioning.rules_for(mesh, plain, axes, sharding)
        shardings = partitioning.parameter_shardings(mesh, axes, rules)
        fitting = {path: partitioning.padded_shape(shape, shardings[path]) for path, shape in plain.items()}
        padded = {path: shape for path, shape in fitting.items() if shape != plain[path]}
        factors = optimizer.factors(shapes)
        transformation = optimizer.build({path: factor for path, factor in factors.items() if factor})
        trained = {path: leaf for path, leaf in shapes.items() if factors[path]}
        if optimizer.pads:
            trained = {path: jax.ShapeDtypeStruct(fitting[path], leaf.dtype) for path, leaf in trained.items()}
        whole = NamedSharding(mesh, PartitionSpec())
        state = TrainState(
            step=whole,
            params={path: shardings[path] for path in trained},
            opt_state=partitioning.state_shardings(jax.eval_shape(transformation.init, trained), mesh, shardings),
        )
        return cls(
            model, optimizer, mesh, rules, factors, shardings, shapes, padded, transformation, state,
            lambda rng: flatten(variables(rng)["params"]),
        )  # fmt: skip

    def initial_params(self, seed: int, given: Params | None = None) -> Flat:
        """Parameters at step 0: what is given, and the model's random initial values for the rest.

        Args:
          seed: of the random values.
          given: nested or flat; any part of the parameters.

        Raises:
          InputError: a given parameter does not exist in the model, or has another shape there.
        """
        given_flat = {} if given is None else flatten(given)
        for path, value in given_flat.items():
            if path not in self.shapes:
                raise InputError(
                    "an initial parameter is none of the model's",
                    f"Leave it out, or choose the model it belongs to, with parameters such as {min(self.shapes)}.",
                    value=path,
                )
            if tuple(np.shape(value)) != self.shapes[path].shape:
                raise InputError(
                    f"the initial parameter {path} has shape {tuple(np.shape(value))}, the model's has "
                    f"{self.shapes[path].shape}",
                    "Give parameters of this model.",
                )
        missing = {path: self.shardings[path] for path in self.shapes if path not in given_flat}
        params: Flat = {}
        if missing:

            def make(rng: jax.Array) -> Flat:
                initial = self._initial(rng)
                return self.pad({path: initial[path] for path in missing})

            params = jax.jit(make, out_shardings=missing)(jax.random.fold_in(jax.random.key(seed), 0))
        for path, value in given_flat.items():
            # A copy: training donates its buffers, and the caller's array must stay readable.
            host = np.array(value, self.shapes[path].dtype, copy=True)
            params[path] = place(self.pad({path: host})[path], self.shardings[path])
        return {path: params[path] for path in self.shapes}

    def split(self, params: Flat) -> tuple[Flat, Flat]:
        """(parameters that learn, frozen ones)."""
        learn = {path: value for path, value in params.items() if self.factors[path]}
        return learn, {path: value for path, value in params.items() if not self.factors[path]}

    def pad(self, params: Flat) -> Flat:
        """Parameters as they lie on the devices."""
        return {path: partitioning.pad(value, self.padded.get(path, value.shape)) for path, value in params.items()}

    def cut(self, params: Flat) -> Flat:
        """Parameters as the model has them."""
        return {path: partitioning.cut(value, self.shapes[path].shape) for path, value in params.items()}

    def initial_state(self, learn: Flat) -> TrainState:
        """A state at step 0 of these parameters."""
        opt_state = jax.jit(self._initial_opt_state, out_shardings=self.state_shardings.opt_state)(learn)
        step = place(np.zeros((), np.int32), self.state_shardings.step)
        return TrainState(step=step, params=learn, opt_state=opt_state)

    def _initial_opt_state(self, learn: Flat) -> Any:
        return self.transformation.init(learn if self.optimizer.pads else self.cut(learn))

    def to_arrays(self, state: TrainState, frozen: Flat) -> dict[str, Flat]:
        """All arrays of a checkpoint: group → flat dict, of the model's shapes on whatever mesh they lie."""
        shapes = self.abstract_arrays()["opt_state"]
        opt_state = {
            path: partitioning.cut(value, shapes[path].shape) for path, value in _flatten_state(state.opt_state).items()
        }
        return {
            "params": self.cut({**frozen, **state.params}),
            "opt_state": {"step": state.step, **opt_state},
        }

    def abstract_arrays(self) -> dict[str, Flat]:
        """The shapes of `to_arrays`."""
        learn, frozen = self.split(dict(self.shapes))
        step = jax.ShapeDtypeStruct((), np.int32)
        opt_state = _flatten_state(jax.eval_shape(self.transformation.init, learn))
        return {"params": {**frozen, **learn}, "opt_state": {"step": step, **opt_state}}

    def array_shardings(self) -> dict[str, Flat]:
        """Where the arrays of `to_arrays` lie; of what lies padded there is none, as each process needs it whole."""
        places = {"params": dict(self.shardings), "opt_state": _flatten_state(self.state_shardings.opt_state)}
        places["opt_state"]["step"] = self.state_shardings.step
        shapes = self.abstract_arrays()
        return {
            group: {path: one for path, one in flat.items() if partitioning.divides(one, shapes[group][path].shape)}
            for group, flat in places.items()
        }

    def from_arrays(self, arrays: Mapping[str, Flat]) -> tuple[TrainState, Flat]:
        """Puts what `to_arrays` gave back onto the devices: (state, frozen)."""
        params = self.pad(dict(arrays["params"]))
        learn, frozen = self.split({path: place(x, self.shardings[path]) for path, x in params.items()})
        structure = jax.tree.structure(self.state_shardings.opt_state)
        shardings = _flatten_state(self.state_shardings.opt_state)
        shapes = _flatten_state(jax.eval_shape(self._initial_opt_state, learn))
        leaves = [
            place(partitioning.pad(arrays["opt_state"][path], shapes[path].shape), sharding)
            for path, sharding in shardings.items()
        ]
        step = place(arrays["opt_state"]["step"], self.state_shardings.step)
        return TrainState(step, learn, jax.tree.unflatten(structure, leaves)), frozen

    def update(self, *, seed: int, microbatches: int = 1, skip: bool = False) -> Callable[..., tuple[TrainState, Flat]]:
        """`jitted_update` on the mesh: (state, frozen, batch, limit = ∞) → (state, metrics); compiles lazily."""
        compiled = self.jitted_update(seed=seed, microbatches=microbatches, skip=skip)

        def run(state: TrainState, frozen: Flat, batch: Flat, limit: float = math.inf) -> tuple[TrainState, Flat]:
            with partitioning.on_mesh(self.mesh, self.rules):
                return compiled(state, frozen, batch, np.float32(limit))

        return run

    def jitted_update(self, *, seed: int, microbatches: int = 1, skip: bool = False) -> Any:
        """(state, frozen, batch, limit) → (state, metrics), to be called or lowered on the mesh: see
        `partitioning.on_mesh`. The given state's buffers are reused.

        With `skip`, an update whose loss or gradient is not finite, or whose loss is above the limit, is left out: of
        the state only the step changes, and the schedule's count with it.

        Loss and gradient are those of sum of losses / sum of weights over the whole batch, on however many devices and
        in however many microbatches it is computed. Dropout follows from (seed, step, microbatch).

        Metrics are pairs (sum, weight); what `loss_fn` returns as a plain sum has the batch's weight.
        """

        def losses(learn: Flat, frozen: Flat, batch: Flat, rng: jax.Array) -> tuple[jax.Array, Flat]:
            loss, metrics = self.model.loss_fn(unflatten(self.cut({**frozen, **learn})), batch, rng)
            weight = jnp.asarray(metrics["weight_sum"], jnp.float32)
            pairs = {name: value if isinstance(value, tuple) else (value, weight) for name, value in metrics.items()}
            pairs["loss"], pairs["weight_sum"] = (loss, weight), (weight, jnp.float32(1))
            return loss, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), pairs)

        gradient = jax.grad(losses, has_aux=True)

        def accumulate(learn: Flat, frozen: Flat, batch: Flat, rng: jax.Array) -> tuple[Flat, Flat]:
            if microbatches == 1:
                return gradient(learn, frozen, batch, rng)

            def rows(x: jax.Array) -> jax.Array:  # [B, ...] → [microbatches, B / microbatches, ...]
                # Every device keeps its own rows: microbatch i takes rows i, i + microbatches, …
                return x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)

            def add(total: tuple, part: tuple) -> tuple[tuple, None]:
                number, piece = part
                return jax.tree.map(
                    jnp.add, total, gradient(learn, frozen, piece, jax.random.fold_in(rng, number))
                ), None

            pieces = jax.tree.map(rows, batch)
            first = jax.eval_shape(gradient, learn, frozen, jax.tree.map(lambda x: x[0], pieces), rng)
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
            return jax.lax.scan(add, zeros, (jnp.arange(microbatches), pieces))[0]

        def update(state: TrainState, frozen: Flat, batch: Flat, limit: jax.Array) -> tuple[TrainState, Flat]:
            rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), state.step)
            gradients, metrics = accumulate(state.params, frozen, batch, rng)
            weight = metrics["loss"][1]
            scale = 1 / jnp.where(weight == 0, 1, weight)
            gradients = {path: value * scale.astype(value.dtype) for path, value in gradients.items()}
            one = jnp.float32(1)
            metrics["gradient_norm"] = (optax.tree.norm(gradients), one)
            metrics["learning_rate"] = (self.optimizer.schedule(state.step), one)
            known = state.params
            if not self.optimizer.pads:  # its moments are means over rows and columns
                gradients, known = self.cut(gradients), self.cut(known)
            changes, opt_state = self.transformation.update(gradients, state.opt_state, known)
            changes = self.pad(changes)
            params = optax.apply_updates(state.params, changes)
            after = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
            if not skip:
                return after, metrics
            loss, norm = metrics["loss"][0] * scale, metrics["gradient_norm"][0]
            sound = jnp.isfinite(loss) & jnp.isfinite(norm) & (loss <= limit)
            metrics["updates_left_out"] = (1 - sound.astype(jnp.float32), one)

            def keep(new: Any, old: Any) -> Any:  # of the schedule's count the new one: the rate is that of the step
                return new if isinstance(new, optax.ScaleByScheduleState) else jnp.where(sound, new, old)

            kept = jax.tree.map(keep, after, state, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))
            return kept.replace(step=after.step), metrics

        return jax.jit(update, donate_argnums=0, out_shardings=(self.state_shardings, None))

    def place_batch(self, batch: Mapping[str, np.ndarray]) -> Flat:
        """This process's rows, as the part they are of the batch of all processes."""
        sharding = partitioning.batch_sharding(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}


def _flatten_state(state: Any) -> Flat:
    """Optimiser state → {"1/mu/a/b/c": leaf}, in the order of its leaves."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }


def place(host: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Puts an array that every process has whole onto the devices; one of JAX's lies there already."""
    if isinstance(host, jax.Array) and host.sharding == sharding:
        return host
    if jax.process_count() == 1:
        return jax.device_put(host, sharding)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def flatten(params: Params) -> Flat:
    """Nested (or already flat) parameters → {"a/b/c": value}."""
    return {"/".join(path): value for path, value in flatten_dict(dict(params)).items()}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a/b/c": value} → nested."""
    return unflatten_dict({tuple(path.split("/")): value for path, value in flat.items()})
