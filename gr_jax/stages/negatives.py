"""The stage of wrong documents for the training queries, and how they are mined."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
from jaxtyping import Int, Int32

from gr_jax import clustering, dense, progress, retrievers, sharing, storage
from gr_jax.corpus import Dataset
from gr_jax.docids import Docids, memberships
from gr_jax.errors import InputError
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import contrastive
from gr_jax.stages import encoders as encoders_lib
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.contrastive import ContrastiveTraining, Draws
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, read_by, stage
from gr_jax.stages.keys import content
from gr_jax.stages.pairs import HeldOut, load_asked, load_pairs
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vectors import load_owner, load_vectors
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training import negatives as tables
from gr_jax.training.negative_files import negatives_from_file
from gr_jax.training.negatives import Negatives
from gr_jax.training.shared_answers import share_answers
from gr_jax.training.token_store import Ragged, TokenStore

# Where negatives come from, the hardest first: what one cannot give, those after it give. "model" is the encoder as
# training finds it, "ance" the one that is being trained, "file" is the user's own.
NEGATIVES = ("file", "ance", "model", "bm25", "cluster", "random")
_SEARCHED = ("model", "bm25")  # a question costs a search; others are read or drawn, all at once
_AT_ONCE = 512
DOCUMENTS_A_CLUSTER = 20


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Mining(Settings):
    """Hard negatives: which documents a query is shown as wrong ones, beside its batch's.

    Attributes:
      shares: kind → share of a query's negatives. "bm25": found by BM25; "model": found by the encoder before it is
        trained; "ance": found by the encoder that is being trained; "cluster": of the answer's own cluster of vectors;
        "random"; "file": named by `file`. Where one has too few for a query, those after it in this order give more:
        file, ance, model, bm25, cluster, random.
      kept: negatives kept of each kind for a query, of which training draws some.
      skip: first ranks that bm25, model and ance pass over: near the top unjudged documents may well be answers.
      clusters: of documents, for the kind "cluster"; None makes one of 20 documents on average. GDR has its own.
      refresh_every: steps after which "ance" negatives are mined again, while training goes on; None never.
      seed: of the choice and the clusters.
      file: of negatives of the train split's queries, see `training.negative_files`; None reads none. A teacher's
        scores in it, of the answer too, are used where it is the only kind: `ContrastiveTraining.margin_mse`.
    """

    shares: Mapping[str, float] = setting({"bm25": 0.5, "model": 0.5}, at_least=0)
    kept: int = setting(16, at_least=1)
    skip: int = setting(0, at_least=0)
    clusters: int | None = setting(None, at_least=1)
    refresh_every: int | None = setting(None, at_least=1)
    seed: int = setting(0, at_least=0)
    file: str | None = setting(None, identity=lambda file: None if file is None else content(file))

    def check(self) -> None:
        if not set(self.shares) <= set(NEGATIVES):
            raise InputError(
                "Mining.shares are not shares of kinds of negatives",
                f"Give numbers of 0 or more for {', '.join(NEGATIVES)}.",
                value=dict(self.shares),
            )
        if bool(self.shares.get("ance")) != (self.refresh_every is not None):
            raise InputError(
                'negatives of the kind "ance" are mined every so many steps, and no others are',
                'Set both Mining.shares["ance"] and Mining.refresh_every, or neither.',
                value=self.refresh_every,
            )
        if ("file" in self.shares) != (self.file is not None):
            raise InputError(
                'negatives of the kind "file" are read from a file, and no others are',
                'Set both Mining.shares["file"] and Mining.file, or neither.',
                value=self.file,
            )

    @property
    def mined_before(self) -> tuple[str, ...]:
        """The kinds that are known before training."""
        return tuple(kind for kind in NEGATIVES if kind in self.shares and kind != "ance")


@dataclasses.dataclass(frozen=True)
class Kinds(Settings):
    """What the stage reads of `Mining`: how much of which kind counts comes later.

    Attributes:
      kinds: that are known before training.
      kept, skip, clusters, seed, file: see `Mining`; None where no kind reads them.
    """

    kinds: Sequence[str]
    kept: int
    skip: int | None
    clusters: int | None
    seed: int | None
    file: str | None = setting(None, identity=lambda file: None if file is None else content(file))

    @classmethod
    def of(cls, mining: Mining) -> Kinds:
        """Of the settings of mining."""
        kinds = mining.mined_before
        return cls(
            kinds=kinds,
            kept=mining.kept,
            skip=mining.skip if {"bm25", "model"} & set(kinds) else None,
            clusters=mining.clusters if "cluster" in kinds else None,
            seed=mining.seed if {"cluster", "random"} & set(kinds) else None,
            file=mining.file,
        )


def negatives_of(
    corpus: Stage,
    pseudo_queries: Stage,
    vocabulary: Stage,
    pairs: Stage,
    bm25: Stage,
    mining: Mining,
    training: ContrastiveTraining,
    *others: ContrastiveTraining | None,
    encoders: Encoders | None = None,
    encoder: Stage | None = None,
    vectors: Stage | None = None,
    clusters: Stage | None = None,
    texts: Stage | None = None,
    share: bool = False,
) -> Stage:
    """The stage of the negatives that settings name, which decide what of these it reads.

    Args:
      corpus, pseudo_queries, vocabulary, pairs, bm25: their stages.
      mining, training: settings.
      others: further trainings that read the same negatives; None stands for one that is off.
      encoders: those that mine the kind "model" before they are trained.
      encoder: or a stage of a trained one that does.
      vectors: a stage of vectors, which are clustered for the kind "cluster".
      clusters: or a stage of clusters.
      texts: a stage of the documents' tokens that training reads, where they are not those of `pairs`.
      share: queries that are read alike have one another's answers.
    """
    kinds = mining.mined_before
    draws: list[Draws] = []
    if {*_SEARCHED} & {*kinds}:
        of_each = [Draws.of(one) for one in (training, *others) if one is not None]
        draws = [one for place, one in enumerate(of_each) if one not in of_each[:place]]
    own = encoders if "model" in kinds and encoder is None else None  # mined by what training starts from
    return negatives(
        corpus,
        pseudo_queries,
        pairs,
        bm25 if "bm25" in kinds else None,
        vocabulary if own is not None else None,
        encoder if "model" in kinds else None,
        vectors if "cluster" in kinds else None,
        clusters if "cluster" in kinds else None,
        texts if draws else None,
        kinds=Kinds.of(mining),
        held_out=training.kept_back,
        encoders=own,
        seed=training.seed if own is not None else None,
        share=share,
        draws=draws,
    )


@stage(shared=True, together=True)
def negatives(
    place: Place,
    corpus: pathlib.Path,
    pseudo_queries: pathlib.Path,
    pairs: pathlib.Path,
    bm25: pathlib.Path | None,
    vocabulary: pathlib.Path | None,
    encoder: pathlib.Path | None,
    vectors: pathlib.Path | None,
    clusters: pathlib.Path | None,
    texts: pathlib.Path | None,
    *,
    kinds: Kinds,
    held_out: HeldOut,
    encoders: Encoders | None,
    seed: int | None,
    share: bool,
    draws: Sequence[Draws],
) -> None:
    """A folder of `Negatives` for every kind that is known before training; rows are the rows of `pairs`' queries.

    What a search finds is looked for where a training draws it: other rows are empty.

    Args:
      texts: a stage of the documents' tokens that training reads; None: they are those of `pairs`.
      held_out: as of `pairs`.
      encoders, seed: what training starts from, where it mines.
      share: queries that are read alike have one another's answers.
      draws: of the trainings that read the negatives; empty where no kind is found by a search.
    """
    dataset, asked = load_asked(corpus, pseudo_queries, held_out)
    queries, documents = load_pairs(pairs)
    queries = share_answers(queries) if share else queries
    documents = documents if texts is None else TokenStore.load(texts / "documents")
    rows = contrastive.drawn_rows(queries, documents, draws) if draws else None
    if rows is not None:
        place.notes["questions"] = {"mined": len(rows), "of": len(queries)}
    for kind in kinds.kinds:
        if kind == "file":
            assert kinds.file is not None
            table = negatives_from_file(
                kinds.file,
                asked.ids,
                queries.targets,
                kinds.kept,
                find_document=dataset.corpus.find,
                known_queries=frozenset(dataset.queries.ids),
            )
        elif kind == "bm25":
            assert bm25 is not None
            terms = load_bm25(bm25, dataset)
            table = mine(terms, asked.texts, queries.targets, kinds.kept, kinds.skip or 0, "BM25's", rows)
        elif kind == "model":
            network = _starting_point(vocabulary, dataset, encoders, seed) if encoder is None else load_encoder(encoder)
            table = mine_with(network, dataset, asked.texts, queries.targets, kinds.kept, kinds.skip or 0, rows)
        elif kind == "cluster":
            if clusters is not None:
                cluster_of = memberships(Docids.load(clusters / "cids"))
            else:
                assert vectors is not None
                own = np.searchsorted(load_owner(vectors), np.arange(len(dataset.corpus)))  # before its sentences'
                cluster_of = _clusters(load_vectors(vectors)[own], kinds)
            table = tables.cluster_negatives(cluster_of, queries.targets, kinds.kept, seed=kinds.seed or 0)
        else:
            table = tables.random_negatives(queries.targets, len(dataset.corpus), kinds.kept, seed=kinds.seed or 0)
        table.save(place.folder / kind)
        found = table.documents[rows] if rows is not None and kind in _SEARCHED else table.documents
        place.notes[kind] = float(np.mean(np.sum(found >= 0, axis=1)))


def _starting_point(
    vocabulary: pathlib.Path | None, dataset: Dataset, settings: Encoders | None, seed: int | None
) -> DenseEncoder:
    """The encoder that training starts from."""
    assert vocabulary is not None and settings is not None and seed is not None
    words = load_vocabulary(vocabulary)
    config, pretrained = encoders_lib.make_encoders(settings, words.size)
    params = encoders_lib.initial_parameters(config, pretrained, seed)
    return encoders_lib.text_encoder(settings, config, params, words, dataset.transform)


def load_encoder(folder: pathlib.Path) -> DenseEncoder:
    """The encoder of a finished stage that trains one."""
    return DenseEncoder.load(folder / "encoder")


def load_negatives(folder: pathlib.Path, mining: Mining) -> dict[str, Negatives]:
    """kind → table of a finished stage of negatives, in the order in which they fill up one another."""
    return {kind: Negatives.load(folder / kind) for kind in mining.mined_before}


def mining_of(*trained: Stage) -> list[Stage]:
    """The stages of negatives that these stages, or what they read, were trained on."""
    return [one for one in read_by(*trained) if one.function is negatives]


def what_mining_took(folders: Sequence[pathlib.Path]) -> str:
    """What a report says of finished stages of negatives: how many questions were searched for, and the minutes."""
    said = []
    for folder in folders:
        meta = storage.read_folder(folder, verify=False).meta
        questions = meta.get("questions")
        asked = "no question" if questions is None else f"{questions['mined']:,} of {questions['of']:,} questions"
        said.append(f"{asked} searched for, {meta['seconds'] / 60:.1f} minutes")
    return "; ".join(said)


def mixed(found: Mapping[str, Negatives], mining: Mining) -> Negatives | None:
    """One table of several kinds, in the order in which they fill up one another; None where there is no kind."""
    found = {kind: found[kind] for kind in NEGATIVES if kind in found}
    if list(found) == ["file"]:
        return found["file"]  # as it is: with a teacher's scores, which a mixture has not
    shares = {kind: mining.shares[kind] for kind in found}
    if not any(shares.values()):
        shares = dict.fromkeys(shares, 1.0)
    return tables.mix(found, shares, mining.kept) if found else None


def first_table(known: Mapping[str, Negatives], mining: Mining, queries: TokenStore, num_documents: int) -> Negatives:
    """What a training begins with: the kinds that are known mixed, random ones where there are none.

    Args:
      known: what `load_negatives` gives.
      mining: settings.
      queries: of the training.
      num_documents: of the corpus.
    """
    table = mixed(known, mining)
    if table is not None:
        return table
    return tables.random_negatives(queries.targets, num_documents, mining.kept, seed=mining.seed)


def mine(
    retriever: retrievers.Retriever,
    texts: Sequence[str],
    relevant: Ragged,
    kept: int,
    skip: int,
    whose: str,
    rows: Int[np.ndarray, " some"] | None = None,
) -> Negatives:
    """Of each query the best documents that do not answer it, in the retriever's order; none of queries that are not
    among `rows`, where these are given. Processes share it out.

    Args:
      retriever: that finds them.
      texts, relevant: of the queries.
      kept: how many a query gets.
      skip: first ranks that are passed over.
      whose: they are, for the progress bar.
      rows: see above.
    """
    depth = skip + kept + int(relevant.lengths.max(initial=0))
    ranking = np.full((len(texts), depth), -1, np.int32)
    rows = np.arange(len(texts)) if rows is None else rows

    def search(part: int) -> dict[str, np.ndarray]:
        chunk = rows[part * _AT_ONCE : (part + 1) * _AT_ONCE]
        return {"found": retriever.retrieve([texts[row] for row in chunk.tolist()], depth).doc_index, "rows": chunk}

    with progress.bar(f"Mining {whose} negatives", len(rows)) as bar:
        for part in sharing.in_parts("mining", -(-len(rows) // _AT_ONCE), search, "while mining"):
            ranking[part["rows"]] = part["found"]
            bar.advance(len(part["rows"]))
    return tables.ranked_negatives(ranking, relevant, kept, skip=skip)


def mine_with(
    encoder: Any,
    dataset: Dataset,
    texts: Sequence[str],
    relevant: Ragged,
    kept: int,
    skip: int,
    rows: Int[np.ndarray, " some"] | None = None,
) -> Negatives:
    """The same by an encoder: ANCE's negatives, where it is the one that is being trained."""
    vectors = encoder.encode_documents(dataset.corpus.contents)
    retriever = DenseRetriever(encoder, dense.make_searcher("exact", vectors))
    return mine(retriever, texts, relevant, kept, skip, "the model's", rows)


def check_refreshing(mining: Mining, training: ContrastiveTraining | None) -> None:
    """Raises InputError for negatives that would be mined again too late, or never."""
    every = mining.refresh_every
    if every is None or training is None:
        return
    if training.steps <= 2 * every:
        raise InputError(
            f"{training.steps} steps end before negatives that were mined again are used, which is from step "
            f"{2 * every} on",
            "Set Mining.refresh_every below half of ContrastiveTraining.steps.",
            value=every,
        )


def _clusters(vectors: np.ndarray, kinds: Kinds) -> Int32[np.ndarray, " documents"]:
    count = kinds.clusters or max(1, len(vectors) // DOCUMENTS_A_CLUSTER)
    return clustering.kmeans(np.asarray(vectors), count, seed=kinds.seed or 0).assignments
