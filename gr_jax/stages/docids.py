"""The stage of docids, of any scheme."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
from jaxtyping import Float

from gr_jax import clustering, storage
from gr_jax import corpus as corpus_lib
from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vectors import Vectors, load_owner, load_vectors
from gr_jax.stages.vocabulary import load_vocabulary

# Docid schemes, and the fields of `Identifiers` that each reads.
SCHEMES = {
    "hierarchical_kmeans": ("branching", "leaf_capacity", "tokens", "seed"),
    "residual_quantization": ("codebooks", "bits", "duplicates", "seed"),
    "titles": ("duplicates", "title_tokens"),
    "atomic": (),
    "naive_numeric": (),
}

CODEBOOKS = "codebooks.npy"


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Identifiers(Settings):
    """The docid scheme. What another scheme reads changes nothing.

    Attributes:
      scheme: "hierarchical_kmeans", "residual_quantization", "titles", "atomic" or "naive_numeric".
      branching: children of a node of the tree; or a list, of the nodes of each level.
      leaf_capacity: a node splits while it holds more documents than this.
      tokens: "position" (a token per level and child number, shared by all nodes of a level) or "node" (each node of
        the tree has a token of its own).
      seed: of the clustering, or of the codebooks.
      codebooks, bits: of residual quantisation: so many tokens, each one of 2^bits codes.
      refits: of residual quantisation: rounds, at most, in which all codebooks are fitted together, so that codes stand
        for their documents more closely. Tokens then start from their codewords. Memory grows with the square of
        codebooks · 2^bits.
      duplicates: of documents with the same codes or the same title: "number" tells them apart, "share" gives them one
        docid. "reserved", of codes: every docid ends in one of `reserved` numbers, so that the tokens are the same
        whatever the documents, and more of these can join.
      reserved: numbers that are reserved for documents with the same codes.
      title_tokens: tokens kept of a title; they are of the vocabulary that the network reads.
      permuted: the seed by which every document gets another's docid, drawn at random: a control of what docids owe to
        the documents that they stand for. None leaves each its own.
    """

    scheme: str = setting("hierarchical_kmeans", choices=tuple(SCHEMES))
    branching: int | Sequence[int] = setting(64, at_least=2)
    leaf_capacity: int = setting(1000, at_least=1)
    tokens: str = setting("node", choices=("position", "node"))
    seed: int = setting(0, at_least=0)
    codebooks: int = setting(3, at_least=1)
    bits: int = setting(8, at_least=1)
    refits: int = setting(0, at_least=0, neutral=0)
    duplicates: str = setting("number", choices=("number", "share", "reserved"))
    reserved: int = setting(64, at_least=1, neutral=64)
    title_tokens: int = setting(24, at_least=1)
    permuted: int | None = setting(None, at_least=0, neutral=None)

    def check(self) -> None:
        if self.duplicates == "reserved" and self.scheme != "residual_quantization":
            raise InputError(
                "numbers are reserved for documents with the same codes, and this scheme has no codes",
                'Set Identifiers.duplicates = "number", or scheme = "residual_quantization".',
                value=self.scheme,
            )

    @property
    def reads_vectors(self) -> bool:
        """Whether docids are made from the documents' vectors."""
        return self.scheme in ("hierarchical_kmeans", "residual_quantization")

    @property
    def has_levels(self) -> bool:
        """Whether every position of a docid has a block of tokens of its own."""
        return self.scheme not in ("naive_numeric", "titles")

    @property
    def names_passages(self) -> bool:
        """Whether passages can have docids of their own."""
        return self.reads_vectors and (self.scheme, self.duplicates) != ("residual_quantization", "share")

    def of_scheme(self) -> dict[str, object]:
        """What the chosen scheme reads."""
        read = (*SCHEMES[self.scheme], *(("permuted",) if self.permuted is not None else ()))
        if self.scheme == "residual_quantization":
            read += ("reserved",) if self.duplicates == "reserved" else ()
            read += ("refits",) if self.refits else ()
        return {"scheme": self.scheme} | {name: getattr(self, name) for name in read}


def docids_of(corpus: Stage, vectors: Stage, vocabulary: Stage, settings: Identifiers, about: Vectors) -> Stage:
    """The stage of the docids that settings name; the scheme decides what of vectors and vocabulary it reads.

    Raises:
      InputError: passages are to have docids of their own, which this scheme does not give.
    """
    if about.sentences and not settings.names_passages:
        raise InputError(
            "only hierarchical_kmeans, and residual_quantization with numbers, give passages docids of their own",
            'Set Vectors.passages = "document", or Identifiers.scheme = "hierarchical_kmeans".',
            value=settings.scheme,
        )
    return docids(
        corpus,
        vectors if settings.reads_vectors else None,
        vocabulary if settings.scheme == "titles" else None,
        scheme=settings.of_scheme(),
    )


@stage(shared=True)
def docids(
    place: Place,
    corpus: pathlib.Path,
    vectors: pathlib.Path | None,
    vocabulary: pathlib.Path | None,
    *,
    scheme: dict,
) -> None:
    """Docids of the documents; in `of_vectors` each for the vector that it was made from.

    Args:
      scheme: what `Identifiers.of_scheme` says.
    """
    dataset = load_dataset(corpus)
    owner = np.arange(len(dataset.corpus)) if vectors is None else load_owner(vectors)
    array: Any = None if vectors is None else np.asarray(load_vectors(vectors))
    words: Any = None if vocabulary is None else load_vocabulary(vocabulary)
    settings = Identifiers(**scheme)
    codebooks = None
    if settings.scheme == "residual_quantization":  # kept, for documents that come later
        codebooks = clustering.learn_codebooks(
            array, levels=settings.codebooks, bits=settings.bits, seed=settings.seed, refits=settings.refits
        )
        np.save(place.folder / CODEBOOKS, codebooks)
    made = _make(dataset, array, words, codebooks, settings)
    if settings.permuted is not None:
        dealt = np.random.default_rng(settings.permuted).permutation(len(owner))
        made = made.for_documents(dealt, len(owner))
        made.meta.pop("refits", None)  # codewords would lead to the documents that the docids were taken from
    made.save(place.folder / "of_vectors")
    made = made.for_documents(owner, len(dataset.corpus))
    made.save(place.folder / "docids")
    place.notes.update({"statistics": docids_lib.statistics(made)})


def _make(
    dataset: corpus_lib.Dataset, vectors: Any, words: Any, codebooks: Any, settings: Identifiers
) -> docids_lib.Docids:
    if settings.scheme == "hierarchical_kmeans":
        return docids_lib.hierarchical_kmeans(
            vectors,
            branching=settings.branching,
            leaf_capacity=settings.leaf_capacity,
            seed=settings.seed,
            tokens=settings.tokens,
        )
    if settings.scheme == "residual_quantization":
        return docids_lib.residual_quantization(
            vectors,
            levels=settings.codebooks,
            bits=settings.bits,
            collisions=settings.duplicates,
            reserved=settings.reserved,
            codebooks=codebooks,
            seed=settings.seed,
            refits=settings.refits,
        )
    if settings.scheme == "titles":
        return docids_lib.titles(
            [docids_lib.title_of(document.title, document.text) for document in dataset.corpus],
            words,
            duplicates=settings.duplicates,
            max_length=settings.title_tokens,
            names=dataset.corpus.doc_ids,
        )
    if settings.scheme == "atomic":
        return docids_lib.atomic(len(dataset.corpus))
    return docids_lib.naive_numeric(len(dataset.corpus))


def load_docids(folder: pathlib.Path) -> docids_lib.Docids:
    """The docids of the documents, of a finished stage of docids."""
    return docids_lib.Docids.load(folder / "docids")


def load_docids_of_vectors(folder: pathlib.Path) -> docids_lib.Docids:
    """The same docids, each for the vector that it was made from instead of that vector's document."""
    return docids_lib.Docids.load(folder / "of_vectors")


def load_codebooks(folder: pathlib.Path) -> Float[np.ndarray, "levels size d"]:
    """The codebooks that a finished stage of docids learnt.

    Raises:
      InputError: its docids are no codes.
    """
    file = folder / CODEBOOKS
    if not file.is_file():
        raise InputError(
            "these docids have no codebooks", 'Make them with Identifiers.scheme = "residual_quantization".', file=file
        )
    return storage.load_array(file, dtype=np.float32, ndim=3)


def load_codewords(folder: pathlib.Path) -> Float[np.ndarray, "levels size d"] | None:
    """The codebooks, where they were fitted together: tokens are to start from these. None: they start from means over
    the documents that have them, as all others do."""
    return load_codebooks(folder) if load_docids(folder).meta.get("refits") else None


def load_quantised(folder: pathlib.Path) -> Float[np.ndarray, "documents d"]:
    """What the codes of every document stand for, the sum of their codewords, of a finished stage of docids.

    Raises:
      InputError: its docids are no codes, or a document has several.
    """
    return clustering.reconstruct(docids_lib.codes_of(load_docids(folder)), load_codebooks(folder))
