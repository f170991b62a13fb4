"""Describes the docids of an index, and draws their tree.

gr-jax docids --index=runs/mine/index --picture=tree.svg
"""

from __future__ import annotations

import pathlib

from absl import flags

from gr_jax import docids as docids_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.systems.gdr import retriever as gdr

from . import program

# Where docids lie in an index, in a system's docids stage, and in a retriever; clusters' in their stage; and where a
# retriever is whose search knows what is in its clusters.
_PLACES = ("", "docids", "retriever/docids", "index/retriever/docids", "cids")
_RETRIEVERS = ("", "retriever", "index/retriever")


def main() -> None:
    folder = pathlib.Path(flags.FLAGS.index)
    docids = find_docids(folder)
    print(docids_lib.describe(docids_lib.statistics(docids)))
    if flags.FLAGS.picture:
        path = pathlib.Path(flags.FLAGS.picture)
        storage.write_bytes(path, draw(docids, path, flags.FLAGS.levels))
        print(f"Picture: {path}")


def find_docids(folder: pathlib.Path) -> docids_lib.Docids:
    """The docids of an index, a run, a stage or a folder of docids; of GDR the clusters', with what is in them.

    Raises:
      InputError: there are none, or they were truncated or altered.
    """
    for place in _RETRIEVERS:
        if _kind(folder / place) == gdr.KIND:
            with storage.explain_content(folder / place):
                return gdr.GDRRetriever.load(folder / place).docids()
    for place in _PLACES:
        if _kind(folder / place) == docids_lib.docids.KIND:
            with storage.explain_content(folder / place):
                return docids_lib.Docids.load(folder / place)
    raise InputError(
        "there are no docids here", "Name an index, a system's MODEL_DIR or a folder of docids.", file=folder
    )


def _kind(folder: pathlib.Path) -> str:
    return storage.read_folder(folder, verify=False).kind if (folder / "manifest.json").is_file() else ""


def draw(docids: docids_lib.Docids, path: pathlib.Path, levels: int) -> bytes:
    """The picture in the format of the file's name.

    Raises:
      InputError: neither .png nor .svg, or matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg"):
        raise InputError("a picture of an unknown format", "End its name in .png or .svg.", value=str(path))
    from gr_jax.evaluation import plots
    from gr_jax.evaluation.docid_plots import docid_tree

    figure = docid_tree(docids, levels=levels)
    return plots.to_png(figure) if path.suffix == ".png" else plots.to_svg(figure)


if __name__ == "__main__":
    flags.DEFINE_string("index", None, "Folder of an index, of a system's run, or of docids.", required=True)
    flags.DEFINE_string("picture", "", "PNG or SVG file to write.")
    flags.DEFINE_integer("levels", 6, "Levels of the tree to draw.", lower_bound=1)
    program.run(main)
