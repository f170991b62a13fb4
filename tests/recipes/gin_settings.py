"""What gin files tell recipes, beside what it does where nobody tells it anything."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import gin
from gr_jax.recipes import gdr_defaults

from gr_jax import recipes

# What some of the files require.
MACROS = [f'{name} = "anywhere"' for name in ("CORPUS", "MODEL_DIR", "T5", "BERT")]
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
DEFAULTS = {
    "encoders": gdr_defaults.ENCODERS,
    "encoder_training": gdr_defaults.ENCODER_TRAINING,
    "encoder_mined": recipes.Mining(),
    "pseudo_queries": gdr_defaults.PSEUDO_QUERIES,
    "lexical": recipes.Lexical(),
    "clusters": recipes.Clusters(),
    "network": recipes.Network(),
    "matching": recipes.Matching(),
    "mined": gdr_defaults.MINED,
    "training": gdr_defaults.TRAINING,
    "joint": gdr_defaults.JOINT,
    "search": recipes.ClusterSearch(),
}
NCI_DEFAULTS = {
    **{name: DEFAULTS[name] for name in DEFAULTS.keys() - {"matching", "mined", "joint", "search"}},
    "training": gdr_defaults.NCI_TRAINING,
    "decoding": recipes.Decoding(),
}


def told(*files: str, recipe: Callable = recipes.gdr) -> dict[str, Any]:
    """What gin files, read one after the other, tell a recipe: settings by argument, in a form that can be compared,
    without what lies where."""
    import launch.recipe  # noqa: F401  it defines what gin files of recipes may name

    gin.clear_config()
    before = os.getcwd()
    os.chdir(CHECKOUT)
    try:
        gin.parse_config_files_and_bindings(files, MACROS)
        found = gin.get_bindings(recipe, resolve_references=True)
    finally:
        os.chdir(before)
        gin.clear_config()
    return comparable({name: value for name, value in found.items() if name not in ("source", "model_dir")})


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, as gin has no tuples of its own; of a training without steps nothing else counts."""
    return {name: _plain(value) for name, value in settings.items()}


def _plain(value: Any) -> Any:
    if not dataclasses.is_dataclass(value):
        return value
    fields = dataclasses.asdict(value)  # type: ignore[arg-type]
    if fields.get("steps") == 0:
        return {"steps": 0}
    return {name: tuple(field) if isinstance(field, list) else field for name, field in fields.items()}
