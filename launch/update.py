"""Adds documents to an index and removes some, without training; the index with them is written beside the old one.

gr-jax update --index=runs/mine/index --add=more_documents --remove=ids.txt --output=runs/mine/updated
"""

from __future__ import annotations

import pathlib

from absl import flags

import gr_jax
from gr_jax import corpus, storage
from gr_jax.corpus.lines import read_lines
from gr_jax.errors import InputError
from gr_jax.retrievers import index

from . import program


def main() -> None:
    old, new = pathlib.Path(flags.FLAGS.index), pathlib.Path(flags.FLAGS.output)
    if old.resolve() == new.resolve():
        raise InputError(
            "the index is written anew, and a recipe would make the one that stands there again",
            "Name another folder as --output.",
            file=new,
        )
    if not (flags.FLAGS.add or flags.FLAGS.remove):
        raise InputError("nothing is to be added or removed", "Name documents by --add, ids by --remove, or both.")
    searcher = gr_jax.load(old)
    added = corpus.read_beir(flags.FLAGS.add).corpus if flags.FLAGS.add else None
    removed = _ids(flags.FLAGS.remove, searcher.corpus) if flags.FLAGS.remove else []
    searcher.update(add=added, remove=removed)
    manifest = storage.read_folder(old, index.KIND, verify=False)
    meta = {name: value for name, value in manifest.meta.items() if name != "bytes"}
    meta |= {"documents": len(searcher.corpus), "updated_from": manifest.corpus}
    meta["removed"] = meta.get("removed", 0) + len(removed)
    index.save(new, searcher.retriever, searcher.corpus, meta=meta, gin=manifest.gin)
    print(f"{0 if added is None else len(added)} documents added, {len(removed)} removed: {new}")


def _ids(file: str, documents: corpus.Corpus) -> list[str]:
    """Those that a file names, each once."""
    found: dict[str, None] = {}
    for number, line in read_lines(file):
        doc_id = line.strip()
        if documents.find(doc_id) is None:
            raise InputError(
                "no document of the index has this id", "Name its documents.", file=file, line=number, value=doc_id
            )
        found[doc_id] = None
    return list(found)


if __name__ == "__main__":
    flags.DEFINE_string("index", None, "Folder of the index.", required=True)
    flags.DEFINE_string("add", "", "Folder in BEIR layout, of new documents.")
    flags.DEFINE_string("remove", "", "File of ids of documents, one a line, plain or .gz.")
    flags.DEFINE_string("output", None, "Folder of the new index.", required=True)
    program.run(main)
