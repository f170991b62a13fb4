"""What a loader makes of an artefact whose checksums hold and whose content is nonsense all the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gr_jax.errors import InputError


@contextlib.contextmanager
def explain_content(folder: str | os.PathLike) -> Iterator[None]:
    """Whatever is raised within becomes an `InputError` about the folder.

    Checksums protect from accidents, not from whoever computes them anew. Loaders look values up and hand them to
    libraries, each of which has errors of its own for values that it cannot use.
    """
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        raise InputError(error.problem, "Make the artefact again.", file=folder, value=error.value) from error
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"its content makes no sense: {type(error).__name__}: {said}",
            "Copy the artefact again whole, or make it again.",
            file=folder,
        ) from error
