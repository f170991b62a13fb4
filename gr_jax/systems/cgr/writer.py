"""The network of CGR: an encoder-decoder whose decoder reads and writes contextualized tokens (Lee et al. 2022, arXiv
2210.02068, section 3.2), and the retriever around it."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gin
import numpy as np

from gr_jax import models
from gr_jax.constraints import TokenTextTrie
from gr_jax.corpus import Dataset
from gr_jax.decoding.merging import WAYS
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.contextual_states import own_encoder
from gr_jax.models.copying_ids import CopyingDecoder, CopyingEncoderDecoder, CopyingModel
from gr_jax.models.docid_tables import initialise_docid_tables
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.documents_of import BestDocid
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.stages import networks, training
from gr_jax.stages.docids import load_docids
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.networks import Network
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.stages.write_docids import Training
from gr_jax.systems.cgr import copying as copies
from gr_jax.systems.cgr.rebuilding import INPUTS, OUTPUTS, TARGETS, Rebuilder, rebuilt
from gr_jax.systems.cgr.vocabulary import (
    Contextual,
    load_table,
    load_text_of,
    load_titles,
    written_in,
)
from gr_jax.text import Vocabulary
from gr_jax.training.batches import make_batches
from gr_jax.training.hooks import Hook
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class TitleDecoding(Settings):
    """How the index answers.

    Attributes:
      beams: hypotheses kept; the paper has 10.
      lookahead: those are kept from which the best titles can come, not those that are best so far; see
        `decoding.Lookahead`, which also says what it takes of memory. The paper has none, and so loses titles that
        begin with a word like others.
      normalize: scores are log-probabilities over the "vocabulary", or over what the trie allows ("constraint"), or
        sums of logits ("none"); see `decoding.beam_search`.
      length_penalty: of the same.
      merge: what becomes of several ways to write one title: "max" keeps the best, "sum" adds them up; None keeps all
        and takes the best of each document at the end.
      max_query_length: tokens read of a question.
    """

    beams: int = setting(20, at_least=1)
    normalize: str = setting("none", choices=("vocabulary", "constraint", "none"))
    length_penalty: float = setting(1.5, at_least=0)
    merge: str | None = setting("max", choices=(None, *WAYS))
    max_query_length: int = setting(64, at_least=3)
    lookahead: bool = setting(True, neutral=False)

    def check(self) -> None:
        if self.lookahead and self.normalize == "constraint":
            raise InputError(
                "what a title could reach is not known before its first token where scores are normalised over what "
                "may follow",
                'Set TitleDecoding.lookahead to False, or TitleDecoding.normalize to "vocabulary" or "none".',
                value=self.normalize,
            )


def _decoder(module: models.EncoderDecoder) -> type[models.GenerativeDecoder]:
    return CopyingDecoder if isinstance(module, CopyingEncoderDecoder) else models.GenerativeDecoder


def retriever_of(
    module: models.EncoderDecoder,
    params: Any,
    words: Vocabulary,
    titles: Docids,
    text_of: np.ndarray,
    decoding: TitleDecoding,
    dataset: Dataset,
) -> GenerativeRetriever:
    """The retriever around a network that writes titles in the decoder's vocabulary."""
    trie = TokenTextTrie.from_docids(titles, text_of)
    return GenerativeRetriever(
        _decoder(module)(module, params, eos_id=trie.eos_id),
        trie,
        words,
        documents_of=BestDocid(titles, text_of=text_of),
        merge=decoding.merge,
        transform=dataset.transform,
        beams=decoding.beams,
        normalize=decoding.normalize,
        length_penalty=decoding.length_penalty,
        max_query_length=decoding.max_query_length,
        lookahead=decoding.lookahead,
    )


class Start(NamedTuple):
    """A network and what belongs to it.

    Attributes:
      module: the network.
      params: its first parameters.
      pretrained: those of its encoder that are, None where none are.
      put: vectors of ids → the parameters that hold them, by path.
    """

    module: models.EncoderDecoder
    params: dict
    pretrained: Any
    put: Callable[[np.ndarray], dict[str, np.ndarray]]


def start_of(
    dataset: Dataset,
    contextual: pathlib.Path,
    words: Vocabulary,
    network: Network,
    seed: int,
    *,
    copying: bool,
    aligned: pathlib.Path | None = None,
) -> Start:
    """What a network of titles starts with.

    Args:
      aligned: another network of the same shape, whose parameters it starts from but for the decoder's vocabulary.
    """
    module, pretrained = networks.make_network(network, words.size, load_docids(contextual))
    width = load_table(contextual).shape[1]
    if width != module.feature_dim:
        raise InputError(
            f"the decoder's vectors are {width} wide, and its features {module.feature_dim}",
            "Set Contextual.encoder to an encoder that is as wide as the network.",
            value=network.encoder,
        )
    params = networks.initial_parameters(module, network, pretrained, load_docids(contextual), None, seed)
    put = functools.partial(_with_table, params, temperature=network.temperature)
    if aligned is not None:
        params = network_folder.load_network(aligned)[1]
    params = replaced(params, put(load_table(contextual)))
    if copying:
        titles = load_titles(contextual)
        start = copies.counted(dataset, words, titles, module)
        module, params = copies.copying_network(module, params, titles, load_text_of(contextual), start)
    return Start(module, params, pretrained, put)


def _with_table(params: dict, table: np.ndarray, *, temperature: float) -> dict[str, np.ndarray]:
    """Path → parameter: the decoder reads and writes the vectors of its ids; what has none, id 0 and what fills up, is
    zero. Vectors are read at the size that the random table of `params` has."""
    params = initialise_docid_tables(params, table, temperature)
    given = np.any(table != 0, axis=1)
    return {
        INPUTS: np.where(given[:, None], params["decoder_token_embedder"]["embedding"], 0),
        OUTPUTS: np.where(given, params["decoder"]["logits_dense"]["kernel"], 0),
    }


def replaced(params: dict, tables: Mapping[str, np.ndarray]) -> dict:
    """The parameters with other tables of the decoder."""
    decoder = {**params["decoder"], "logits_dense": {"kernel": tables[OUTPUTS]}}
    return {**params, "decoder_token_embedder": {"embedding": tables[INPUTS]}, "decoder": decoder}


def rates_of(module: models.EncoderDecoder, network: Network, pretrained: Any) -> dict[str, float]:
    """Factors on the learning rate where nobody says otherwise: the decoder's vectors are centroids, and a decoder that
    learns quickly unlearns what they know."""
    return networks.learning_rate_multipliers(module, dataclasses.replace(network, outputs="centroid"), pretrained)


def matrix_held(multipliers: Mapping[str, float]) -> dict[str, float]:
    """The same factors on learning rates, but that the matrix stays as it was built (section 4.1). Of several patterns
    that match, the first decides."""
    held = {"decoder/logits_dense": 0.0, "decoder_token_embedder": 0.0}
    return held | {pattern: factor for pattern, factor in multipliers.items() if pattern not in held}


def dev_looks(
    settings: training.Optimization,
    module: models.EncoderDecoder,
    params: Any,
    words: Vocabulary,
    contextual: pathlib.Path,
    decoding: TitleDecoding,
    dataset: Dataset,
) -> training.DevEvaluation | None:
    """What a training looks at dev with; None where it does not."""
    if not settings.dev_queries or not len(dataset.qrels.get("dev", ())):
        return None
    titles, text_of = load_titles(contextual), load_text_of(contextual)
    retriever = retriever_of(module, params, words, titles, text_of, decoding, dataset)
    return training.DevEvaluation(retriever, dataset, settings.dev_queries)


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    contextual: pathlib.Path,
    vocabulary: pathlib.Path,
    examples: pathlib.Path,
    *,
    network: Network,
    settings: Training,
    decoding: TitleDecoding,
    copying: bool,
) -> None:
    """Trains the network to write each question's title, in the ids of its own page. Interrupted, it goes on from its
    latest checkpoint with the same result.

    Args:
      contextual: the decoder's vocabulary, whose vectors stay as they are.
      examples: questions, and titles in decoder ids.
      decoding: of the looks at dev.
      copying: see `CGR`.
    """
    training_of = Writing(corpus, contextual, vocabulary, examples, network, settings, decoding, copying)
    training_of.fit(place)


@stage(trains=True)
def evolving_model(
    place: Place,
    corpus: pathlib.Path,
    contextual: pathlib.Path,
    vocabulary: pathlib.Path,
    examples: pathlib.Path,
    aligned: pathlib.Path | None,
    *,
    network: Network,
    settings: Training,
    decoding: TitleDecoding,
    copying: bool,
    rebuilds: int,
    vectors: Contextual,
) -> None:
    """The same, where the network's own encoder makes the decoder's vocabulary: before it is trained to write titles
    (Contra), while it is (Async), or both.

    Args:
      aligned: a network that finds titles' tokens, from which it starts, and whose encoder made `contextual`.
      rebuilds: how often the vocabulary is made again.
      vectors: how it is made.
      contextual, examples, decoding, copying: see `model`.
    """
    training_of = Writing(corpus, contextual, vocabulary, examples, network, settings, decoding, copying, aligned)
    training_of.fit(place, rebuilds=rebuilds, vectors=vectors)


@dataclasses.dataclass(frozen=True)
class Writing:
    """The training of a network that writes titles; its fields are the parameters of `model` and `evolving_model`."""

    corpus: pathlib.Path
    contextual: pathlib.Path
    vocabulary: pathlib.Path
    examples: pathlib.Path
    network: Network
    settings: Training
    decoding: TitleDecoding
    copying: bool
    aligned: pathlib.Path | None = None

    def fit(self, place: Place, *, rebuilds: int = 0, vectors: Contextual | None = None) -> None:
        """Trains, and saves what is kept.

        Args:
          place: of the stage.
          rebuilds, vectors: see `evolving_model`.
        """
        settings, dataset, words = self.settings, load_dataset(self.corpus), load_vocabulary(self.vocabulary)
        ids, titles = load_docids(self.contextual), load_titles(self.contextual)
        module, params, pretrained, put = start_of(
            dataset, self.contextual, words, self.network, settings.seed, copying=self.copying, aligned=self.aligned
        )
        store: Any = TokenStore.load(self.examples / "tokens")
        hooks: list[Hook] = []
        if rebuilds and vectors is not None:
            texts = load_text_of(self.contextual)[: ids.vocab_size]
            reader = vectors.reader(own_encoder(module, params)[0], dataset, words, titles)
            rebuilder = Rebuilder(
                module, reader, ids, load_table(self.contextual), texts, put, vectors.clusters, vectors.seed
            )
            store, hook = rebuilt(rebuilder, store, rebuilds, settings.steps)
            hooks.append(hook)
        evaluate = dev_looks(settings, module, params, words, self.contextual, self.decoding, dataset)
        task = Task(
            model=(CopyingModel if self.copying else models.EncoderDecoderModel)(
                module=module, label_smoothing=settings.label_smoothing, rdrop=settings.rdrop or 0.0, eos_id=ids.eos_id
            ),
            batches=make_batches(
                store,
                batch_size=settings.batch_size,
                lengths={"inputs": settings.row_length, "targets": settings.row_targets},
                rates=settings.rates,
                seed=settings.seed,
            ),
            initial_params=params,
            multipliers=matrix_held(rates_of(module, self.network, pretrained)),
            evaluate=evaluate,
            hooks=hooks,
        )
        if settings.multipliers is not None:
            settings = dataclasses.replace(settings, multipliers=matrix_held(settings.multipliers))
        trained = training.fit(place, task, settings)
        _decoder(module)(module, trained.params, eos_id=ids.eos_id).save(place.folder)
        for hook in hooks:  # titles in the ids of the matrix that is kept
            targets = trained.tables[hook.name][TARGETS]
            made = written_in(targets, titles, vocab_size=ids.vocab_size, eos_id=int(ids.eos_id or 0))
            made.save(place.folder / "docids")


@stage(version=2)
def untrained(
    place: Place,
    corpus: pathlib.Path,
    contextual: pathlib.Path,
    vocabulary: pathlib.Path,
    *,
    network: Network,
    seed: int,
    copying: bool,
) -> None:
    """The network as it is before any training; see `model`."""
    words = load_vocabulary(vocabulary)
    module, params, *_ = start_of(load_dataset(corpus), contextual, words, network, seed, copying=copying)
    _decoder(module)(module, params, eos_id=load_docids(contextual).eos_id).save(place.folder)
    training.keep_curves(place)


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    contextual: pathlib.Path,
    vocabulary: pathlib.Path,
    model: pathlib.Path,
    *,
    decoding: TitleDecoding,
) -> None:
    """All that answering needs, in one folder."""
    dataset = load_dataset(corpus)
    network: Any = network_folder.load_model(model)
    words, titles, text_of = load_vocabulary(vocabulary), load_titles(contextual), load_text_of(contextual)
    retriever = retriever_of(network.module, network.params, words, titles, text_of, decoding, dataset)
    indexes.fill(place.folder, retriever, dataset.corpus)
    place.notes.update({"documents": len(dataset.corpus), "bytes": training.folder_bytes(place.folder)})
