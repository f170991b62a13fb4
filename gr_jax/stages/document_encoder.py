"""The encoder that documents are clustered and matched by: trained as a dense retriever, taken from a run, or as it
is."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import bi_encoder, pretrained
from gr_jax.stages.contrastive import ContrastiveTraining, check_drawn
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.keys import digest
from gr_jax.stages.negatives import Mining, load_encoder, negatives_of
from gr_jax.stages.networks import Network
from gr_jax.stages.pairs import pairs_of
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.stages.training import check_stays, keep_curves
from gr_jax.stages.vocabulary import load_vocabulary, vocabulary_of

NAME = "document_encoder"
# What `gdr`, `nci` and `dsi_clusters` share where nobody says otherwise.
ENCODERS = Encoders(temperature=0.02, document_length=256)
PSEUDO_QUERIES = PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6})
ENCODER_TRAINING = ContrastiveTraining(
    steps=300,
    batch_size=32,
    negatives=1,
    learning_rate=5e-5,
    warmup_steps=30,
    document_length=128,
    evaluate_every=100,
    checkpoint_every=100,
    held_out=0.05,
    dev_documents=2500,
    keep_best="dev_mean/RR@10",
)
# Stages of a run of `dpr` that have its encoder: the second goes on from the first.
_MODEL, _QUERY_MODEL = "model", "query_model"


@dataclasses.dataclass(frozen=True)
class Taken:
    """The encoder of a finished run of `dpr`.

    Attributes:
      run: its MODEL_DIR.
    """

    run: str

    @property
    def folder(self) -> pathlib.Path:
        """Of the stage that trained it last; a folder that a run with other settings left behind is passed over.

        Raises:
          InputError: it is no such run.
        """
        run = pathlib.Path(self.run)
        folder = run / _MODEL
        if (run / _QUERY_MODEL / storage.MANIFEST).is_file():
            built = run / "index"
            if (built / storage.MANIFEST).is_file():
                last = _QUERY_MODEL in storage.read_folder(built, verify=False).meta.get("inputs", {})
            else:
                read = storage.read_folder(run / _QUERY_MODEL, verify=False).meta["inputs"][_MODEL]
                last = read == storage.read_folder(run / _MODEL, verify=False).made_from
            folder = run / _QUERY_MODEL if last else folder
        storage.read_folder(folder, verify=False)
        if not (folder / "encoder").is_dir():
            raise InputError("a run that trained no bi-encoder", "Name the MODEL_DIR of a run of dpr.", file=run)
        return folder

    def identity(self) -> Any:
        """What the encoder's files hold, and how it reads texts, which its manifest says."""
        folder = self.folder
        files = storage.read_folder(folder, verify=False).files
        own = {name: entry["sha256"] for name, entry in sorted(files.items()) if name.startswith("encoder/")}
        reads = storage.read_folder(folder / "encoder", verify=False).meta
        return digest(
            {name: sha for name, sha in own.items() if not name.endswith(storage.MANIFEST)} | {"reads": reads}
        )

    def training(self) -> dict[str, Any] | None:
        """How it was trained, as its manifest says; None where it was not."""
        return storage.read_folder(self.folder, verify=False).meta["config"].get("training")


def document_encoder_of(
    corpus: Stage,
    pseudo_queries: Stage,
    vocabulary: Stage,
    bm25: Stage,
    encoders: Encoders,
    training: ContrastiveTraining | None,
    mining: Mining,
    trained: str | None,
) -> Stage:
    """The stage of the document encoder.

    Args:
      corpus, pseudo_queries, vocabulary, bm25: their stages.
      encoders: the network.
      training: how it is trained; None leaves it as it is.
      mining: its hard negatives.
      trained: folder of a run of `dpr`, whose encoder is taken instead; `training` then counts for nothing.

    Raises:
      InputError: `trained` is no such folder, or its encoder reads otherwise than the settings say.
    """
    if trained is not None:
        _check_taken(Taken(trained), encoders)
        return taken(vocabulary, encoder=Taken(trained)).named(NAME).for_all()
    if training is None:
        return bi_encoder.untrained(corpus, vocabulary, settings=encoders).named(NAME).for_all()
    read = training.of(encoders)
    pairs = pairs_of(corpus, pseudo_queries, vocabulary, read, training.kept_back).named("encoder_pairs")
    wrong = negatives_of(
        corpus, pseudo_queries, vocabulary, pairs, bm25, mining, training, encoders=read
    ).named("encoder_negatives")  # fmt: skip
    return (
        bi_encoder.bi_encoder(
            corpus, vocabulary, pseudo_queries, pairs, wrong, settings=encoders, mining=mining, training=training
        )
        .named(NAME)
        .for_all()
    )


@stage()
def taken(place: Place, vocabulary: pathlib.Path, *, encoder: Taken) -> None:
    """The encoder of a finished run, copied."""
    found = load_encoder(encoder.folder)
    if load_vocabulary(vocabulary).fingerprint != found.vocabulary.fingerprint:
        raise InputError(
            "an encoder with another vocabulary than that of the settings",
            "Set Encoders.encoder and Encoders.vocabulary to those of the run that trained it.",
            file=encoder.run,
        )
    shutil.copytree(encoder.folder / "encoder", place.folder / "encoder")
    keep_curves(place)


def query_vocabulary(corpus: Stage, vocabulary: Stage, network: Network, start: str) -> Stage:
    """The vocabulary that queries are read in: the document encoder's, or another, where the network has its own.

    Args:
      corpus: the documents.
      vocabulary: the document encoder's.
      network: what reads queries.
      start: what it starts from, "document_encoder" or "pretrained".
    """
    own = vocabulary_of(corpus, network)
    if start == "document_encoder" or own.key == vocabulary.key:
        return vocabulary
    return own.named("query_vocabulary")


def _check_taken(encoder: Taken, encoders: Encoders) -> None:
    found = DenseEncoder.load(encoder.folder / "encoder", verify=False)
    its: dict[str, Any] = {"pooling": found.config.pooling, "similarity": found.config.similarity}
    its |= {f"{side}_prefix": prefix for side, prefix in found.prefixes.items()}
    its |= {"document_length": found.lengths["document"]}
    for name, value in its.items():
        if value != getattr(encoders, name):
            raise InputError(
                f"an encoder whose {name} is {value!r}",
                f"Set Encoders.{name} = {value!r}.",
                file=encoder.run,
                value=getattr(encoders, name),
            )


def check_document_encoder(
    trained: str | None, training: ContrastiveTraining | None, mining: Mining, *after: ContrastiveTraining | None
) -> None:
    """Raises InputError for settings of a document encoder that contradict one another, or what is trained after it.

    Questions that are to be held out from a training must not have been learnt from before: which they are follows from
    their share and the seed.

    Args:
      trained: see `document_encoder_of`.
      training, mining: the document encoder's.
      after: the trainings that read its questions.
    """
    check_drawn(training)
    if trained is None and mining.refresh_every:
        check_stays(training, "negatives are mined again", "set encoder_mining/Mining.refresh_every to None")
    if trained is None and "cluster" in mining.shares:
        raise InputError(
            "there are no clusters before the document encoder",
            "Take another kind of negatives for it: encoder_mining/Mining.shares = {...}.",
            value=dict(mining.shares),
        )
    first = next((one for one in after if one is not None), None)
    if first is None or not first.held_out:
        return
    if trained is not None:
        before = Taken(trained).training()
        its = {} if before is None else {"held_out": before.get("held_out"), "seed": before.get("seed")}
        where, whose = pathlib.Path(trained), "an encoder whose training held out other questions"
    elif training is not None:
        its = {"held_out": training.held_out, "seed": training.seed}
        where, whose = None, "the document encoder's training holds out other questions"
    else:
        return
    for name, value in its.items():
        if value != getattr(first, name):
            raise InputError(
                f"{whose}: its {name} is {value}",
                f"Set both ContrastiveTraining.{name} alike, or training/ContrastiveTraining.held_out = None.",
                file=where,
                value=getattr(first, name),
            )


def check_widths(encoders: Encoders, trained: str | None, network: Network, start: str, *, matched: bool) -> None:
    """Raises InputError for networks that do not fit the document encoder, as far as configurations tell: what they are
    would show when that has been trained.

    Args:
      encoders, trained: see `document_encoder_of`; of an encoder that is taken from a run nothing is known here.
      network: that reads queries and writes.
      start: what reads queries starts from, the "document_encoder" or the "pretrained" one of `network`.
      matched: vectors of queries are compared with those of documents.
    """
    own = pretrained.width_of(encoders.encoder, encoders.width) if trained is None else None
    documents = own if encoders.projection is None else encoders.projection
    queries = own if start == "document_encoder" else pretrained.width_of(network.encoder, network.width)
    decoder = network.width if network.decoder is None else pretrained.width_of(network.decoder, network.width)
    if network.decoder is not None and None not in (queries, decoder) and queries != decoder:
        raise InputError(
            f"a pretrained decoder reads states of width {decoder}, and those of queries are {queries} wide",
            "Set Network.decoder = None, or let queries be read by an encoder of its width: Encoders.encoder, or "
            'Network.encoder where they start from the "pretrained" one.',
            value=network.decoder,
        )
    if matched and None not in (queries, documents) and queries != documents:
        raise InputError(
            f"the network reads queries into {queries} dimensions, and documents have vectors of {documents}",
            "Choose Network.encoder and Encoders.encoder of one width.",
            value=network.encoder,
        )
    features = queries if network.query_residual else decoder
    if network.outputs == "centroid" and None not in (features, documents) and features != documents:
        raise InputError(
            f"the document vectors are {documents} wide, the decoder's features {features}",
            "Set Network.outputs = 'random', or choose an encoder that is as wide as the vectors.",
            value=network.outputs,
        )


def check_query_encoder(encoders: Encoders, start: str) -> None:
    """Raises InputError for encoders whose queries another network cannot read."""
    if encoders.query_prefix:
        raise InputError(
            "queries are read without a prefix", 'Set Encoders.query_prefix = "".', value=encoders.query_prefix
        )
    if start == "document_encoder" and (encoders.projection or encoders.pooling == "pooler"):
        raise InputError(
            "queries' vectors are pooled states here, and this document encoder makes more of them",
            'Set Encoders.projection = None and Encoders.pooling = "mean" or "cls".',
            value=encoders.projection or encoders.pooling,
        )
    if encoders.pooling == "pooler":
        raise InputError("queries have no pooler", 'Set Encoders.pooling = "mean" or "cls".', value=encoders.pooling)
