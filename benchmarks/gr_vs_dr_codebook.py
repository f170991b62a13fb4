"""Study `codebook` of `benchmarks.gr_vs_dr`: what GR-codebook reaches, and what its codes leave to reach.

GR-codebook writes six codes of eight bits and a number (`gin_configs/systems/dsi_codebook.gin`). Codebooks are fitted
on MiniLM's vectors of the documents. Beside it stand exact searches that write nothing: over those vectors, and over
what the codes stand for, the sums of their codewords, by MiniLM's vector of a question and by that of the trained
network. What writing costs is the distance to the last. Tables that start at random (`Network.outputs = "random"`) show
what the start from the codebooks is worth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from benchmarks import harness, pooled
from benchmarks.recipe_runs import RecipeRun
from gr_jax import dense, models, retrievers, storage
from gr_jax.corpus import read_beir
from gr_jax.evaluation import Evaluation, dot_plots, evaluate, plots
from gr_jax.models import network_folder
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import pretrained
from gr_jax.stages.docids import load_quantised
from gr_jax.stages.vectors import load_vectors
from gr_jax.stages.vocabulary import load_vocabulary

GROUP = "gr_vs_dr"
SPLITS = {"squad_dev": ("test", "test_unseen"), "nq_boolq_dev": ("test",)}
MEASURES = ("Success@1", "Success@10", "RR@10")
SEEDS = (0,)  # no curve: one training at the standard budget, as of the other headlines
# What GR-codebook is to reach: Success@1 and Success@10.
GOALS = {
    ("squad_dev", "test"): (0.62, 0.91),
    ("squad_dev", "test_unseen"): (0.47, 0.875),
    ("nq_boolq_dev", "test"): (0.80, 0.97),
}
RANDOM = ('Network.outputs="random"',)
Values = Mapping[str, float]


def runs(data: str, *flags: str, label: str = "") -> tuple[RecipeRun, ...]:
    """GR-codebook, once for each seed of its training."""
    return tuple(
        RecipeRun(
            GROUP, data, "dsi_codebook", "_".join(filter(None, (label, str(seed)))),
            flags=(*flags, f"Training.seed={seed}"),
        )
        for seed in SEEDS
    )  # fmt: skip


def reached(made: Sequence[RecipeRun], split: str) -> Values:
    """What the writer reached, and its longest training."""
    values = dict(pooled.of_indices(made, [split], MEASURES))
    return values | {"core-minutes": max(run.core_minutes() for run in made)}


def above(first: Sequence[RecipeRun], second: Sequence[RecipeRun], data: str) -> Values:
    """How far one is above another, over all splits."""
    return pooled.differences(*(pooled.of_indices(one, SPLITS[data], MEASURES) for one in (first, second)))


def minilm(run: RecipeRun) -> DenseEncoder:
    """Of questions, as it is, whatever the run."""
    from gr_jax.interop import huggingface

    network = huggingface.load_sentence_encoder(pretrained.pretrained_folder("minilm"))
    stack, params = pretrained.load_stack("minilm", 0.0)
    config = models.BiEncoderConfig(encoder=stack, similarity="cosine")
    return DenseEncoder(config, {"query": params}, network.vocabulary)


def trained(run: RecipeRun) -> DenseEncoder:
    """Of questions, as the trained network reads them before it writes."""
    module, params = network_folder.load_network(run.folder / "model")
    config = models.BiEncoderConfig(encoder=module.encoder_config, pooling=module.query_pooling, similarity="cosine")
    read = {name: params[name] for name in ("token_embedder", "encoder")}
    return DenseEncoder(config, {"query": read}, load_vocabulary(run.input_folder("model", "vocabulary")))


def quantised(run: RecipeRun) -> Float[np.ndarray, "documents d"]:
    """What the codes of the documents stand for."""
    return load_quantised(run.input_folder("model", "docids"))


def whole(run: RecipeRun) -> Float[np.ndarray, "documents d"]:
    """The documents' vectors, of which the codebooks were learnt."""
    return np.asarray(load_vectors(run.input_folder("model", "vectors")))


def searched(
    encoder: DenseEncoder, vectors: Float[np.ndarray, "documents d"], run: RecipeRun, split: str
) -> Evaluation:
    """What exact search by inner product reaches.

    Args:
      encoder: of questions.
      vectors: of documents.
      run: whose data it is.
      split: of it.
    """
    dataset = read_beir(run.source)
    retriever = DenseRetriever(encoder, dense.make_searcher("exact", np.ascontiguousarray(vectors, np.float32)))
    found = retrievers.retrieve_run(retriever, dataset.split_queries(split), dataset.corpus, k=100)
    return evaluate(found, dataset.split(split), MEASURES)


def ceiling(run: RecipeRun, split: str, encoder: Callable[[RecipeRun], DenseEncoder], vectors: Callable) -> Values:
    """What exact search reaches on a split.

    Args:
      run: trained where it is not.
      split: of its data.
      encoder, vectors: from the run to the encoder of questions, and to the vectors of documents.
    """
    run.train()
    return dict(searched(encoder(run), vectors(run), run, split))


def draw(current: Mapping[str, Values]) -> None:
    """What the writer reaches beside what exact searches do, of the rows that are recorded."""
    named: dict[str, dict[str, float]] = {}
    for data, splits in SPLITS.items():
        for split in splits:
            prefix = f"codebook: {data} {split} "
            for name in (row.name for row in rows() if row.name.startswith(prefix) and row.name in current):
                named.setdefault(name.removeprefix(prefix), {})[f"{data} {split}"] = current[name]["RR@10"]
    if named:
        figure = dot_plots.dots(named, title="GR-codebook, and exact search of what it writes", x="RR@10")
        storage.write_bytes(harness.RESULTS / "gr_vs_dr_codebook.svg", plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    table = []
    for data, splits in SPLITS.items():
        started, random = runs(data), runs(data, *RANDOM, label="random")
        for split in splits:
            row = functools.partial(_row, data, split)
            goals = dict(zip(("Success@1", "Success@10"), GOALS[data, split], strict=True))
            table += [
                row("GR-codebook", started, functools.partial(reached, started, split), at_least=goals),
                row("GR-codebook, tables at random", random, functools.partial(reached, random, split)),
            ]
            for title, encoder, vectors in (
                ("vectors, searched exactly", minilm, whole),
                ("codes, searched exactly", minilm, quantised),
                ("codes, searched exactly by the trained question", trained, quantised),
            ):
                measure = functools.partial(ceiling, started[0], split, encoder, vectors)
                table.append(row(title, started[:1], measure))
        table.append(
            harness.Row(
                name=f"codebook: {data} GR-codebook above tables at random",
                config={"splits": list(splits)},
                measure=functools.partial(above, started, random, data),
                corpus=started[0].fingerprint,
                seeds=SEEDS,
                runs=[*started, *random],
                note="paired t-test over queries, of one training",
            )
        )
    return table


def _row(
    data: str,
    split: str,
    title: str,
    made: Sequence[RecipeRun],
    measure: Callable[[], Values],
    at_least: Mapping[str, float] | None = None,
) -> harness.Row:
    return harness.Row(
        name=f"codebook: {data} {split} {title}",
        config={"split": split},
        measure=measure,
        at_least=at_least or {},
        corpus=made[0].fingerprint,
        seeds=SEEDS[: len(made)],
        runs=list(made),
    )
