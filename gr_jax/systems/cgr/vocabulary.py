"""The decoder's vocabulary of CGR (Lee et al. 2022, arXiv 2210.02068, section 3.1): what an encoder makes of the tokens
of titles where they stand in their documents."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
from jaxtyping import Float, Int

from gr_jax import docids as docids_lib
from gr_jax import models, processes, storage
from gr_jax.corpus import Dataset
from gr_jax.docids import Docids
from gr_jax.docids.contextual_tokens import UNUSED, ContextualTokens, contextual_tokens
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.contextual_states import own_encoder, states_in_context
from gr_jax.retrievers.added_titles import READ
from gr_jax.stages import pretrained
from gr_jax.stages.blocks import Advance, in_blocks
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.networks import VOCABULARY_MULTIPLE
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.text import HuggingFaceVocabulary, Vocabulary, get_transform

_BLOCK = 1024  # pages that are read at a time


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Contextual(Settings):
    """The decoder's vocabulary.

    Attributes:
      encoder: what reads titles in their documents (the paper's EMB): "minilm", or a Hugging Face folder of T5 or BERT.
      clusters: ids of a token at most (the paper's k = 5), each the centroid of some of its states. None: every state
        has one of its own.
      vanilla: instead, the encoder's own embedding of every token of its vocabulary, as GENRE has it; `clusters`,
        `content`, `length` and `seed` say nothing then.
      content: what is read: the title and the documents behind it; False: the title alone.
      length: tokens read of both; of a title alone all.
      title_tokens: tokens kept of a title.
      seed: of the clustering.
    """

    encoder: str = setting("minilm", identity=pretrained.identity)
    clusters: int | None = setting(5, at_least=1)
    vanilla: bool = False
    content: bool = True
    length: int = setting(160, at_least=8)
    title_tokens: int = setting(24, at_least=1)
    seed: int = setting(0, at_least=0)

    def check(self) -> None:
        if self.content and not self.vanilla and self.title_tokens + 2 > self.length:
            raise InputError(
                "a title of that length would be cut where it is read",
                f"Set Contextual.length to {self.title_tokens + 2} or more.",
                value=self.length,
            )

    def reader(self, config: Any, dataset: Dataset, words: Vocabulary, titles: Docids) -> TitleReader:
        """What reads titles so; see `TitleReader`."""
        room = _room(self.content, self.length, self.title_tokens)
        return TitleReader(config, dataset, words, titles, self.content, room)


def _room(content: bool, length: int, title_tokens: int) -> int:
    """Tokens of a row: all of a title that stands alone."""
    return length if content else title_tokens + 2


@stage(shared=True, together=True)
def title_states(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    *,
    encoder: pretrained.Encoder,
    content: bool,
    length: int,
    title_tokens: int,
) -> None:
    """What the encoder makes of each title's tokens, page by page: `states.npy`, float32[tokens, d]. Interrupted, it
    goes on behind the last block of pages.

    Documents of one title are one page: its contents are read one behind the other, in the order of the documents.

    Args:
      encoder, content, length, title_tokens: see `Contextual`.
    """
    config, params = _encoder(encoder.name, load_vocabulary(vocabulary))
    _read_all(place, corpus, vocabulary, config, params, content, length, title_tokens)


@stage(shared=True, together=True)
def aligned_title_states(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    aligned: pathlib.Path,
    *,
    content: bool,
    length: int,
    title_tokens: int,
) -> None:
    """The same, read by the encoder of a network that was trained to find titles' tokens (Contra, section 3.3).

    Args:
      aligned: the network.
      content, length, title_tokens: see `Contextual`.
    """
    module, params = network_folder.load_network(aligned)
    _read_all(place, corpus, vocabulary, *own_encoder(module, params), content, length, title_tokens)


def _read_all(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    config: Any,
    params: Any,
    content: bool,
    length: int,
    title_tokens: int,
) -> None:
    """Fills the folder of states, block by block."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    titles = titles_of(dataset, words, title_tokens)
    reader = TitleReader(config, dataset, words, titles, content, _room(content, length, title_tokens))

    def read(pages: range, advance: Advance) -> np.ndarray:
        states = reader.read(params, pages)
        advance(len(pages))
        return states

    files = in_blocks(
        place.common, "states", len(titles), _BLOCK, read,
        title="Reading titles in their documents", where="while reading titles",
    )  # fmt: skip
    if not processes.first():
        return  # one array is enough
    blocks = [storage.load_array(file, dtype=np.float32, ndim=2, mmap=True) for file in files]
    states = storage.new_array(place.folder / "states.npy", np.float32, (sum(map(len, blocks)), blocks[0].shape[1]))
    np.concatenate(blocks, out=states)
    states.flush()
    place.notes.update({"pages": len(titles), "states": len(states)})


@dataclasses.dataclass(frozen=True)
class TitleReader:
    """Reads titles in their documents.

    Attributes:
      config: of the encoder.
      dataset, words: documents, and what cuts them into tokens.
      titles: of `titles_of`.
      content: whether documents are read behind their titles.
      length: tokens of a row.
    """

    config: Any
    dataset: Dataset
    words: Vocabulary
    titles: Docids
    content: bool
    length: int

    def read(self, params: Any, pages: range | None = None) -> Float[np.ndarray, "tokens d"]:
        """States of the tokens of titles, page by page.

        Args:
          params: of the encoder.
          pages: which; None reads all.
        """
        pages = range(len(self.titles)) if pages is None else pages
        rewrite, shift = get_transform(self.dataset.transform), self.titles.meta["shift"]
        fronts = [[token - shift for token in self.titles.sequence(row)] for row in pages]
        texts: Sequence[Sequence[int]] = [()] * len(pages)
        if self.content:
            texts = self.words.encode_batch([rewrite(_content(self.dataset, self.titles, row)) for row in pages])
        return states_in_context(
            models.TextEncoder(self.config),
            params,
            fronts,
            texts,
            length=self.length,
            prefix=self.words.prefix,
            suffix=self.words.suffix,
        )


def vocabulary_of_titles(corpus: Stage, words: Stage, settings: Contextual, aligned: Stage | None = None) -> Stage:
    """The stage of the decoder's vocabulary, and before it that of what is clustered.

    Args:
      aligned: the network whose encoder reads titles; None: the one that the settings name.
    """
    read = {"content": settings.content, "length": settings.length, "title_tokens": settings.title_tokens}
    states = None
    if aligned is not None:
        states = aligned_title_states(corpus, words, aligned, **read)
    elif not settings.vanilla:
        states = title_states(corpus, words, encoder=pretrained.Encoder(settings.encoder), **read)
    made = contextual_vocabulary(corpus, words, states, settings=settings)
    return made if aligned is None else made.named("aligned_vocabulary")


@stage(shared=True, version=2)
def contextual_vocabulary(
    place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, states: pathlib.Path | None, *, settings: Contextual
) -> None:
    """Titles as text, the decoder's vocabulary, and the titles written in it.

    It holds `titles` (docids in text tokens), `docids` and `of_vectors` (the same in decoder ids, as other stages
    expect them), `text_of.npy` (int32[vocab], see `TokenTextTrie`) and `table.npy` (float32[vocab, d], rows of unit
    length).

    Args:
      states: of the titles' tokens; None where the vocabulary is vanilla.
    """
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    _, params = _encoder(settings.encoder, words)
    titles = titles_of(dataset, words, settings.title_tokens)
    started = time.monotonic()
    if states is None:
        made = vanilla_tokens(titles, params["token_embedder"]["embedding"])
    else:
        made = contextual_tokens(
            pages_of(titles), storage.load_array(states / "states.npy", dtype=np.float32, ndim=2),
            clusters=settings.clusters, seed=settings.seed, progress=True,
        )  # fmt: skip
    table = unit_rows(made, titles, params["token_embedder"]["embedding"][titles.eos_id - titles.meta["shift"]])
    text_of = np.full(-(-len(table) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE, UNUSED, np.int32)
    text_of[: len(table)] = made.text_of
    (end,) = np.flatnonzero(made.text_of == titles.eos_id).tolist()
    written = written_in(made.targets, titles, vocab_size=made.vocab_size, eos_id=end)
    # What reads titles of documents that are added later is told how.
    meta = {} if settings.vanilla else {READ: settings.length if settings.content else 0}
    dataclasses.replace(titles, meta={**titles.meta, **meta}).save(place.folder / "titles")
    for name in ("docids", "of_vectors"):
        written.save(place.folder / name)
    np.save(place.folder / "text_of.npy", text_of)
    np.save(place.folder / "table.npy", np.pad(table, ((0, len(text_of) - len(table)), (0, 0))))
    place.notes.update(
        {
            "pages": len(titles),
            "ids": made.vocab_size,
            "bytes": made.table.nbytes,
            "inertia": made.inertia,
            "seconds": time.monotonic() - started,
        }
    )


def _encoder(name: str, words: Vocabulary) -> tuple[Any, Any]:
    """The stack that reads titles, and its parameters."""
    config, params = pretrained.load_stack(name, 0.0)
    if words.size > config.vocab_size:
        raise InputError(
            f"titles are cut into a vocabulary of {words.size} tokens, and their encoder reads {config.vocab_size}",
            "Set Contextual.encoder and Network.encoder to networks of one vocabulary.",
            value=name,
        )
    tokenizer = pretrained.pretrained_folder(name) / "tokenizer.json"
    if isinstance(words, HuggingFaceVocabulary) and tokenizer.is_file():
        if HuggingFaceVocabulary(tokenizer).fingerprint != words.fingerprint:
            raise InputError(
                "titles are cut by one tokenizer and read by an encoder that has another",
                "Set Contextual.encoder and Network.encoder to encoders with the same tokenizer.",
                file=tokenizer,
            )
    return config, params


def titles_of(dataset: Dataset, words: Vocabulary, title_tokens: int) -> Docids:
    """The titles of the documents, those of one page shared by its documents."""
    called = [docids_lib.title_of(document.title, document.text) for document in dataset.corpus]
    nameless = next((place for place, title in enumerate(called) if not title), None)
    if nameless is not None:
        raise InputError(
            f"document {dataset.corpus.doc_ids[nameless]!r} has neither title nor text",
            "Give it a title, or leave it out.",
        )
    return docids_lib.titles(
        called,
        words,
        duplicates="share",
        max_length=title_tokens,
        names=dataset.corpus.doc_ids,
        transform=dataset.transform,
    )


def pages_of(titles: Docids) -> Docids:
    """The same titles, each for one page: page i has title i."""
    sequences = [titles.sequence(row) for row in range(len(titles))]
    return Docids.build(sequences, vocab_size=titles.vocab_size, eos_id=titles.eos_id, scheme="titles")


def _content(dataset: Dataset, titles: Docids, row: int) -> str:
    """The documents of a page, in their order."""
    return " ".join(dataset.corpus.texts[document] for document in np.sort(titles.documents_of(row)).tolist())


def vanilla_tokens(titles: Docids, embeddings: Float[np.ndarray, "vocab d"]) -> ContextualTokens:
    """A vocabulary in which every token has one id, which is its own number, and its embedding.

    Raises:
      InputError: titles have tokens that have no embedding.
    """
    shift = titles.meta["shift"]
    if titles.vocab_size - shift > len(embeddings):
        raise InputError(
            f"titles of {titles.vocab_size} tokens, and {len(embeddings)} embeddings",
            "Read titles in the encoder's own vocabulary.",
        )
    text_of = np.arange(titles.vocab_size, dtype=np.int32)
    text_of[0] = UNUSED
    targets = np.zeros((len(titles), titles.max_steps), np.int32)
    targets[:, : titles.tokens.shape[1]] = titles.tokens
    if titles.eos_id is not None:
        targets[np.arange(len(titles)), titles.lengths] = titles.eos_id
    table = np.asarray(embeddings, np.float32)[np.maximum(text_of - shift, 0)]
    return ContextualTokens(text_of, table, targets, 0.0)


def unit_rows(made: ContextualTokens, titles: Docids, end: Float[np.ndarray, " d"]) -> Float[np.ndarray, "vocab d"]:
    """The vectors at unit length; what ends titles has one of its own, and id 0 none."""
    table = np.array(made.table, np.float32)
    table[made.text_of == titles.eos_id] = end
    table[0] = 0
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)


def written_in(targets: Int[np.ndarray, "pages length"], titles: Docids, *, vocab_size: int, eos_id: int) -> Docids:
    """Titles in decoder ids.

    Args:
      targets: the ids of each page's title.
      titles: as text, one row a page.
      vocab_size, eos_id: of the decoder.
    """
    rows = np.repeat(np.arange(len(titles)), np.diff(titles.offsets))
    return Docids.build(
        [targets[row, : titles.lengths[row]].tolist() for row in rows],
        vocab_size=vocab_size,
        eos_id=eos_id,
        documents=titles.documents,
        num_documents=titles.num_documents,
        texts=None if titles.texts is None else [titles.texts[row] for row in rows.tolist()],
        duplicates="share",
        scheme="contextual_titles",
        meta=dict(titles.meta),
    )


def load_titles(folder: pathlib.Path) -> Docids:
    """Titles in text tokens, of a finished stage."""
    return Docids.load(folder / "titles")


def load_text_of(folder: pathlib.Path) -> Int[np.ndarray, " vocab"]:
    """The text token of each decoder id, of a finished stage."""
    return storage.load_array(folder / "text_of.npy", dtype=np.int32, ndim=1)


def load_table(folder: pathlib.Path) -> Float[np.ndarray, "vocab d"]:
    """The vector of each decoder id, of a finished stage."""
    return storage.load_array(folder / "table.npy", dtype=np.float32, ndim=2)
