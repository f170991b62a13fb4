"""BM25 over documents expanded by queries that a trained generator wrote (docT5query, Nogueira & Lin 2019)."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import models, retrievers
from gr_jax.corpus import Dataset
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.query_generator import QueryGenerator, QueryGeneratorModel
from gr_jax.recipes import dense_index, documents, examples, mining, query_generation, results
from gr_jax.recipes.dense_settings import Lexical
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import Settings, at_least, one_of
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher, index
from gr_jax.text import encode_texts
from gr_jax.training.loop import EarlyStopping, train
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.query_batches import DocumentQueries, QueryBatches

# Generated queries that a report shows, with what BM25 answers to them.
NUM_SHOWN = 10
# Tokens of a row of dev, which has few queries of a document.
_DEV_TARGETS = 48


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class QueryGenerating(Settings):
    """The generator of queries and its training.

    Attributes:
      encoder: "minilm" (pretrained, not trained further), "t5" (from scratch, of the sizes below), or a Hugging Face
        folder of T5 or BERT.
      vocabulary, vocabulary_size: see `Network`.
      width, encoder_layers, decoder_layers, heads, mlp_width, dropout: see `Network`.
      words: tokens that can be written without being copied: those of which training queries are most often made.
      document_tokens, query_tokens: read and written of each.
      made: pseudo-queries of a document that training adds to its own: they teach to copy, and how questions look.
      others: documents without training queries that are read too, for each with some.
      steps: updates.
      batch_size: documents of an update.
      row_targets: tokens of the queries of one document in an update.
      learning_rate, warmup_steps, weight_decay, clip: of AdamW; the rate falls linearly.
      evaluate_every: steps between measurements of −log p of dev queries, of which the best parameters are kept.
      dev_documents: so many of the documents that dev queries ask for are measured on.
      checkpoint_every: steps between checkpoints.
      seed: of initialisation, shuffling and dropout.
    """

    encoder: str = "minilm"
    vocabulary: str = "pretrained"
    vocabulary_size: int = 8000
    width: int = 384
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 6
    mlp_width: int = 1024
    dropout: float = 0.1
    words: int = 2048
    document_tokens: int = 160
    query_tokens: int = 24
    made: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"cloze": 4})
    others: float = 0.25
    steps: int = 500
    batch_size: int = 32
    row_targets: int = 96
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    evaluate_every: int = 100
    dev_documents: int = 256
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self):
        one_of("QueryGenerating.vocabulary", self.vocabulary, "pretrained", "sentencepiece", "byte")
        at_least(1, width=self.width, heads=self.heads, decoder_layers=self.decoder_layers, mlp_width=self.mlp_width)
        at_least(2, words=self.words, query_tokens=self.query_tokens)
        at_least(1, batch_size=self.batch_size, dev_documents=self.dev_documents)
        at_least(0, steps=self.steps, warmup_steps=self.warmup_steps)
        if self.row_targets < self.query_tokens:
            raise InputError(
                "a query does not fit QueryGenerating.row_targets",
                f"Set it to QueryGenerating.query_tokens = {self.query_tokens} or more.",
                value=self.row_targets,
            )


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class GeneratedQueries(Settings):
    """The queries that the generator writes.

    Attributes:
      samples: drawn for each document.
      top_k: each token is drawn among so many best ones.
      temperature: below 1 the best are drawn more often.
      within: a query is kept if BM25 ranks its document among so many first; 0 keeps all.
      most: kept of a document.
      batch_size: documents whose queries are drawn together.
      seed: of the drawing.
    """

    samples: int = 30
    top_k: int = 10
    temperature: float = 1.0
    within: int = 3
    most: int = 8
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self):
        at_least(1, samples=self.samples, top_k=self.top_k, most=self.most, batch_size=self.batch_size)
        at_least(0, within=self.within)
        if not self.temperature > 0:
            raise InputError("GeneratedQueries.temperature is not positive", "Set it to 1.", value=self.temperature)


def generator_stage(corpus: Stage, vocabulary: Stage, settings: QueryGenerating) -> Stage:
    """Trains the generator on the train split. Interrupted, it goes on from its latest checkpoint."""

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        data = _queries_of(dataset, words, settings, "train")
        own = query_generation.frequent_words(data, words.eos_id, settings.words)
        module, params, frozen = _make_network(settings, words.size, own)
        if settings.steps:
            params = _train(place, dataset, words, data, QueryGeneratorModel(module, tuple(own)), params, frozen)
        save_generator(place.folder, module, params, own)
        curves = place.work / "metrics.jsonl"
        if curves.exists():
            shutil.copy(curves, place.folder / "metrics.jsonl")
        else:
            (place.folder / "metrics.jsonl").write_text("")
        place.meta["seconds"] = before + time.monotonic() - started

    def _train(
        place: Workplace,
        dataset: Dataset,
        words: Any,
        data: DocumentQueries,
        model: QueryGeneratorModel,
        params: dict,
        frozen: bool,
    ) -> Any:
        def batches(part: DocumentQueries, name: str, **changes: Any) -> QueryBatches:
            if frozen:  # what never changes is computed once
                states = query_generation.encode_documents(
                    model.module, params, part.documents, place.work / f"states_{name}", progress=True
                )
                part = dataclasses.replace(part, encoded=states)
            return QueryBatches(part, batch_size=settings.batch_size, eos_id=words.eos_id, **changes)

        dev = None
        if len(dataset.qrels.get("dev", ())):
            part = _sample(_queries_of(dataset, words, settings, "dev"), settings.dev_documents)
            dev = batches(part, "dev", targets=max(_DEV_TARGETS, settings.query_tokens), epochs=1)

        def evaluate(params: Mapping[str, Any], step: int) -> dict[str, float]:
            return {"dev/loss": query_generation.mean_loss(model, params, dev)}

        schedule = Schedule(
            settings.learning_rate, min(settings.warmup_steps, settings.steps // 2), "linear", settings.steps
        )
        result = train(
            model,
            batches(data, "train", targets=settings.row_targets, seed=settings.seed),
            steps=settings.steps,
            optimizer=adamw(
                schedule,
                weight_decay=settings.weight_decay,
                clip=settings.clip,
                multipliers={"token_embedder": 0.0, "encoder": 0.0} if frozen else {},
            ),
            model_dir=place.work,
            seed=settings.seed,
            initial_params=params,
            evaluate=None if dev is None else evaluate,
            eval_every=settings.evaluate_every,
            early_stopping=EarlyStopping("dev/loss", mode="min") if dev is not None else None,
            checkpoint_every=settings.checkpoint_every,
            progress=True,
        )
        dev_losses = [record for record in result.history if record["step"] == result.step]
        place.meta.update({"step": result.step, "last_step": result.last_step, "dev": dev_losses})
        for name in ("train", "dev"):
            shutil.rmtree(place.work / f"states_{name}", ignore_errors=True)
        return result.params

    config = settings.as_config() | documents.encoder_config(settings.encoder)
    return Stage("generator", config, (corpus, vocabulary), make)


def generated_stage(
    corpus: Stage, vocabulary: Stage, generator: Stage, bm25: Stage, about: QueryGenerating, settings: GeneratedQueries
) -> Stage:
    """The queries that are kept, as `PseudoQueries`: any system can train on them, see `PseudoQueries.generated`."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        module, params, own = load_generator(place.inputs["generator"])
        tokens, _ = encode_texts(words, dataset.document_texts(), about.document_tokens)
        drawn = query_generation.generate(
            QueryGeneratorModel(module, own).decoder(params),
            words,
            tokens,
            samples=settings.samples,
            top_k=settings.top_k,
            temperature=settings.temperature,
            query_tokens=about.query_tokens,
            batch_size=settings.batch_size,
            seed=settings.seed,
            work=place.work,
            progress=True,
        )
        kept = query_generation.filtered(
            drawn,
            mining.load_bm25(place.inputs["bm25"], dataset),
            within=settings.within,
            most=settings.most,
            corpus=dataset.corpus.fingerprint,
            progress=True,
        )
        kept.save(place.folder / "pseudo_queries")
        number = len(dataset.corpus)
        place.meta.update({"drawn": settings.samples * number, "kept": len(kept), "per_document": len(kept) / number})
        shutil.rmtree(place.work, ignore_errors=True)

    return Stage("generated", settings.as_config(), (corpus, vocabulary, generator, bm25), make)


def expanded_index_stage(corpus: Stage, generated: Stage, lexical: Lexical) -> Stage:
    """BM25 over documents and their generated queries."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        expansions = PseudoQueries.load(place.inputs["generated"] / "pseudo_queries")
        bm25 = retrievers.BM25(
            dataset.corpus, expansions=expansions, transform=dataset.transform, progress=True, **lexical.as_config()
        )
        index.fill(place.folder, bm25, dataset.corpus)
        place.meta.update({"documents": bm25.num_documents, "queries": len(expansions)})

    return Stage("index", lexical.as_config(), (corpus, generated), make)


def results_stage(
    name: str, corpus: Stage, bm25: Stage, generator: Stage, generated: Stage, built: Stage, provenance: dict[str, Any]
) -> Stage:
    """Runs, measures and a report with generated queries in it."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        plain = mining.load_bm25(place.inputs["bm25"], dataset)
        report = dense_index.start_report(name, dataset, provenance)
        results.judge(place, report, dataset, {"BM25": plain, name: searcher.retriever})
        dense_index.add_training(report, name, place.inputs["generator"])
        queries = PseudoQueries.load(place.inputs["generated"] / "pseudo_queries")
        alone = Searcher(plain, dataset.corpus)
        for place_of in np.linspace(0, len(queries) - 1, min(NUM_SHOWN, len(queries))).astype(int).tolist():
            source = dataset.corpus[int(queries.documents[place_of])].doc_id
            question = queries.texts[place_of]
            report.add_example(question, alone.search(question, 3), relevant={source}, system="generated; BM25 answers")
        results.finish(place, report, dataset)

    settings = {"name": name, "measures": list(results.MEASURES), "depth": results.DEPTH, "provenance": provenance}
    return Stage("results", settings, (corpus, bm25, generator, generated, built), make)


@gin.configurable(module="gr_jax.recipes")
def bm25_doct5query(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "BM25 + docT5query",
    generator: QueryGenerating | None = None,
    generated: GeneratedQueries | None = None,
    lexical: Lexical | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains a generator of queries, writes queries for every document, and indexes documents with them by BM25.

    The queries are a table in `model_dir/generated/pseudo_queries`, which every other recipe can train on.

    Args:
      source: a BEIR folder's path, or a `Source`. Its train split is learnt from.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      generator, generated, lexical: settings; None takes the defaults (under gin: what gin binds).
      shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, or no queries to learn from.
    """
    how, what, terms = generator or QueryGenerating(), generated or GeneratedQueries(), lexical or Lexical()

    def stages_of(found: Source) -> list[Stage]:
        corpus = documents.corpus_stage(found)
        vocabulary = examples.vocabulary_stage(corpus, how)
        bm25 = mining.bm25_stage(corpus, terms)
        trained = generator_stage(corpus, vocabulary, how)
        written = generated_stage(corpus, vocabulary, trained, bm25, how, what)
        built = expanded_index_stage(corpus, written, terms)
        provenance = {"pseudo_queries": f"at most {what.most} generated", "seeds": sorted({how.seed, what.seed})}
        judged = results_stage(name, corpus, bm25, trained, written, built, provenance)
        return [corpus, vocabulary, bm25, trained, written, built, judged]

    return run_stages(source, stages_of, model_dir, shared_dir=shared_dir, until=until, say=say)


def save_generator(folder: Any, module: QueryGenerator, params: Mapping[str, Any], words: list[int]) -> None:
    """Writes a generator into a folder that somebody else finishes."""
    config = {
        "encoder": network_folder.encoder_to_json(module.encoder_config),
        "decoder": network_folder.encoder_to_json(module.decoder_config),
        "words": [int(word) for word in words],
    }
    network_folder.write(folder, config, params)


def load_generator(folder: Any) -> tuple[QueryGenerator, dict, tuple[int, ...]]:
    """Reads what `save_generator` wrote: network, parameters, words.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    words: list[int] = []

    def make(config: Mapping[str, Any]) -> QueryGenerator:
        words.extend(config["words"])
        encoder, decoder = (network_folder.encoder_from_json(config[name]) for name in ("encoder", "decoder"))
        return QueryGenerator(encoder, decoder, len(words))

    module, params = network_folder.read(folder, make)
    return module, params, tuple(words)


def _queries_of(dataset: Dataset, vocabulary: Any, settings: QueryGenerating, split: str) -> DocumentQueries:
    learning = split == "train"
    return query_generation.document_queries(
        dataset,
        vocabulary,
        split=split,
        made=settings.made if learning else {},
        document_tokens=settings.document_tokens,
        query_tokens=settings.query_tokens,
        seed=settings.seed,
        others=settings.others if learning else 0.0,
    )


def _sample(data: DocumentQueries, most: int) -> DocumentQueries:
    """So many of the documents, always the same."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(data.documents))[:most])
    asked, made = ([queries[place] for place in chosen] for queries in (data.asked, data.made))
    return DocumentQueries(data.documents[chosen], asked, made)


def _make_network(
    settings: QueryGenerating, vocabulary_size: int, words: list[int]
) -> tuple[QueryGenerator, dict, bool]:
    """The network, its first parameters, and whether its encoder is pretrained and stays as it is."""
    decoder = models.T5Config(
        vocab_size=vocabulary_size,
        emb_dim=settings.width,
        num_heads=settings.heads,
        head_dim=settings.width // settings.heads,
        num_encoder_layers=settings.encoder_layers,
        num_decoder_layers=settings.decoder_layers,
        mlp_dim=settings.mlp_width,
        mlp_activations=("gelu", "linear"),
        dropout_rate=settings.dropout,
    )
    if settings.encoder == "t5":
        return *query_generation.make_generator(decoder, None, words, decoder, settings.seed), False
    from gr_jax.interop import huggingface

    folder = documents.pretrained_folder(settings.encoder)
    load = huggingface.load_t5 if huggingface.model_type(folder) == "t5" else huggingface.load_bert
    encoder, pretrained = load(folder, dropout_rate=settings.dropout)
    return *query_generation.make_generator(encoder, pretrained, words, decoder, settings.seed), True
