"""The network of CGR: an encoder-decoder whose decoder reads and writes contextualized tokens (Lee et al. 2022, arXiv
2210.02068, section 3.2), and the retriever around it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import models
from gr_jax.constraints import TokenTextTrie
from gr_jax.corpus import Dataset
from gr_jax.decoding.merging import WAYS
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import network_folder
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
from gr_jax.systems.cgr.vocabulary import load_table, load_text_of, load_titles
from gr_jax.text import Vocabulary
from gr_jax.training.batches import make_batches
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class TitleDecoding(Settings):
    """How the index answers.

    Attributes:
      beams: hypotheses kept; the paper's 10 lose titles that begin with a word like others.
      normalize: scores are log-probabilities over the "vocabulary", or over what the trie allows ("constraint"), or
        sums of logits ("none"); see `decoding.beam_search`.
      length_penalty: of the same.
      merge: what becomes of several ways to write one title: "max" keeps the best, "sum" adds them up; None keeps all
        and takes the best of each document at the end.
      max_query_length: tokens read of a question.
    """

    beams: int = setting(50, at_least=1)
    normalize: str = setting("none", choices=("vocabulary", "constraint", "none"))
    length_penalty: float = setting(1.5, at_least=0)
    merge: str | None = setting("max", choices=(None, *WAYS))
    max_query_length: int = setting(64, at_least=3)


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
    )


def _start(
    dataset: Dataset, contextual: pathlib.Path, words: Vocabulary, network: Network, seed: int, copying: bool
) -> tuple[models.EncoderDecoder, dict, Any]:
    """The network, its first parameters, and the pretrained ones of its encoder."""
    module, pretrained = networks.make_network(network, words.size, load_docids(contextual))
    width = load_table(contextual).shape[1]
    if width != module.feature_dim:
        raise InputError(
            f"the decoder's vectors are {width} wide, and its features {module.feature_dim}",
            "Set Contextual.encoder to an encoder that is as wide as the network.",
            value=network.encoder,
        )
    params = networks.initial_parameters(module, network, pretrained, load_docids(contextual), None, seed)
    params = _with_table(params, load_table(contextual), network.temperature)
    if copying:
        titles = load_titles(contextual)
        start = copies.counted(dataset, words, titles, load_docids(contextual), module)
        module, params = copies.copying_network(module, params, titles, load_text_of(contextual), start)
    return module, params, pretrained


def _with_table(params: dict, table: np.ndarray, temperature: float) -> dict:
    """The decoder reads and writes the vectors of its ids; what has none, id 0 and what fills up, is zero."""
    params = initialise_docid_tables(params, table, temperature)
    given = np.any(table != 0, axis=1)
    inputs = np.where(given[:, None], params["decoder_token_embedder"]["embedding"], 0)
    outputs = np.where(given, params["decoder"]["logits_dense"]["kernel"], 0)
    decoder = {**params["decoder"], "logits_dense": {"kernel": outputs}}
    return {**params, "decoder_token_embedder": {"embedding": inputs}, "decoder": decoder}


def _matrix_held(multipliers: Mapping[str, float]) -> dict[str, float]:
    """The same factors on learning rates, but that the matrix stays as it was built (section 4.1). Of several patterns
    that match, the first decides."""
    held = {"decoder/logits_dense": 0.0, "decoder_token_embedder": 0.0}
    return held | {pattern: factor for pattern, factor in multipliers.items() if pattern not in held}


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
    dataset, words, ids = load_dataset(corpus), load_vocabulary(vocabulary), load_docids(contextual)
    module, params, pretrained = _start(dataset, contextual, words, network, settings.seed, copying)
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        retriever = retriever_of(
            module, params, words, load_titles(contextual), load_text_of(contextual), decoding, dataset
        )
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=(CopyingModel if copying else models.EncoderDecoderModel)(
            module=module, label_smoothing=settings.label_smoothing, rdrop=settings.rdrop or 0.0, eos_id=ids.eos_id
        ),
        batches=make_batches(
            TokenStore.load(examples / "tokens"),
            batch_size=settings.batch_size,
            lengths={"inputs": settings.row_length, "targets": settings.row_targets},
            rates=settings.rates,
            seed=settings.seed,
        ),
        initial_params=params,
        multipliers=_matrix_held(
            # Its vectors are centroids, and a decoder that learns quickly unlearns what they know.
            networks.learning_rate_multipliers(module, dataclasses.replace(network, outputs="centroid"), pretrained)
        ),
        evaluate=evaluate,
    )
    if settings.multipliers is not None:
        settings = dataclasses.replace(settings, multipliers=_matrix_held(settings.multipliers))
    trained = training.fit(place, task, settings).params
    _decoder(module)(module, trained, eos_id=ids.eos_id).save(place.folder)


@stage()
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
    module, params, _ = _start(load_dataset(corpus), contextual, words, network, seed, copying)
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
