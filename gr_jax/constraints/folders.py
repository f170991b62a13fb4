"""Any constraint as a folder, of which the manifest says which it is."""

from __future__ import annotations

import os
import pathlib

from gr_jax import storage
from gr_jax.constraints import fm_index_files, sharded_fm_index, token_text_trie, trie_files
from gr_jax.constraints.base import Constraint
from gr_jax.constraints.everything import Everything
from gr_jax.constraints.fm_index import FMIndex
from gr_jax.constraints.mixed import Mixed
from gr_jax.constraints.sharded_fm_index import ShardedFMIndex
from gr_jax.constraints.token_text_trie import TokenTextTrie
from gr_jax.constraints.trie import Trie
from gr_jax.errors import InputError

MIXED, EVERYTHING = "mixed_constraints", "everything"


def save_constraint(folder: str | os.PathLike, constraint: Constraint) -> None:
    """Writes a constraint. A filter belongs to queries and is not written.

    Raises:
      InputError: one that cannot be written.
    """
    if isinstance(constraint, (Trie, TokenTextTrie, FMIndex, ShardedFMIndex)):
        constraint.save(folder)
    elif isinstance(constraint, Mixed):
        with storage.write_folder(folder, MIXED, meta={"constraints": len(constraint.constraints)}) as new:
            for number, part in enumerate(constraint.constraints):
                save_constraint(new / f"part_{number}", part)
    elif isinstance(constraint, Everything):
        meta = {"vocab_size": constraint.vocab_size, "eos_id": constraint.eos_id}
        with storage.write_folder(folder, EVERYTHING, meta=meta):
            pass
    else:
        raise InputError(
            "this constraint cannot be written",
            "Use one of gr_jax.constraints, or save the retriever's parts yourself.",
            value=type(constraint).__name__,
        )


def load_constraint(folder: str | os.PathLike, *, verify: bool = True) -> Constraint:
    """Reads what `save_constraint` wrote.

    Args:
      folder: the folder.
      verify: check the checksums of what does not do so always.

    Raises:
      InputError: it holds no constraint, or was truncated or altered.
    """
    folder = pathlib.Path(folder)
    manifest = storage.read_folder(folder, verify=verify)
    if manifest.kind == trie_files.KIND:
        return Trie.load(folder)
    if manifest.kind == token_text_trie.KIND:
        return TokenTextTrie.load(folder)
    if manifest.kind == fm_index_files.KIND:
        return FMIndex.load(folder, verify=False)
    if manifest.kind == sharded_fm_index.KIND:
        return ShardedFMIndex.load(folder, verify=False)
    if manifest.kind == MIXED:
        count = manifest.meta["constraints"]
        return Mixed(tuple(load_constraint(folder / f"part_{i}", verify=False) for i in range(count)))
    if manifest.kind == EVERYTHING:
        return Everything(**manifest.meta)
    raise InputError("this folder holds no constraint", "Name one that holds one.", file=folder, value=manifest.kind)
