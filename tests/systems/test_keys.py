"""Every setting that gin can bind, of every system, changed one at a time: which stages get another key, and no others.

Written out by hand for BM25, DSI and GDR; by rule for the rest. Nothing is made.
"""

import dataclasses
import pathlib
from typing import Any

import gin
import pytest

from gr_jax import storage, systems
from gr_jax.errors import InputError
from gr_jax.stages.settings import Settings
from gr_jax.systems import GDR, System
from gr_jax.systems.docid_writer import DocidWriter
from tests.systems import one_setting

NAMED = {cls.__name__: cls for cls in systems.SYSTEMS}
_MINDERS = ("MINDER", "LTRGR", "DGR")
_TITLES = ("GENRE", "GENREStar", "CGR", "CGRAsync", "CGRContra")
_ALIGNING = ("aligning", *(f"aligning.{field.name}" for field in dataclasses.fields(systems.Aligning)))
TAUGHT = ("DGR", "DSIDGR")  # by a teacher, which has to be named
# Settings that no valid value but the default can have, and what says so.
REFUSED = {
    "DPR frozen_documents": "no projection",
    "GDR training.in_batch": "all documents of a batch",
    "GDR joint.in_batch": "all documents of a batch",
    "GDR training.margin_mse": "teacher",
    "GDR training.teacher_kl": "teacher",
    "GDR joint.margin_mse": "teacher",
    "GDR joint.teacher_kl": "teacher",
    "GDR encoders.query_prefix": "prefix",
    "NCI encoders.query_prefix": "prefix",
    "NCI identifiers.scheme": "paths of a tree",
    "NCI identifiers.tokens": "positions among siblings",
    "DSIClusters encoders.query_prefix": "prefix",
    "DSIClusters clusters.algorithm": "one tree",
    "DSIClusters clusters.most_docids": "one tree",
    "ColBERT encoders.query_prefix": "prefix",
    "ColBERT encoders.document_prefix": "prefix",
    "ColBERT mining.refresh_every": "kinds",
    "BM25CrossEncoder encoders.query_prefix": "prefix",
    "BM25CrossEncoder encoders.document_prefix": "prefix",
    "BM25CrossEncoder mining.refresh_every": "kinds",
    "BM25CrossEncoder training.chunks": "chunks",
    **{
        f"BM25CrossEncoder encoders.{one}": "no use for"
        for one in ("projection", "pooling", "shared", "similarity", "temperature")
    },
    "DSIDGR training": "not trained to write",
    **{f"{name} generator.multipliers": "multipliers" for name in ("BM25DocT5Query", "DSIQG", *_MINDERS)},
    **{f"{name} generator.dev_queries": "dev" for name in ("BM25DocT5Query", "DSIQG", *_MINDERS)},
    **{f"{name} writing.multipliers": "multipliers" for name in ("SEAL", *_MINDERS)},
    "SEAL writing.made_questions": "none are generated",
    **{f"{name} network.vocabulary": "does not know" for name in _TITLES},
    **{f"{name} network.outputs": "decoder's vectors" for name in _TITLES},
    **{f"{name} training.normalize": "no levels" for name in _TITLES},
    **{f"{name} {one}": "no encoder makes again" for name in _TITLES[:2] for one in ("rebuilds", *_ALIGNING)},
    **{f"{name} contextual.vanilla": "no encoder makes again" for name in _TITLES[3:]},
    **{f"{name} training": "nothing is trained" for name in _TITLES[3:]},
    **{f"{name} asking.writes": "no such views" for name in ("SEAL", *_MINDERS)},
    **{f"{name} distilling.multipliers": "stays as it is" for name in ("LTRGR", "DGR")},
}
# What several trainings have to have alike is changed in all of them.
ALIKE = {
    ("DPR", "seed"): ("training", "query_training"),
    ("DPR", "held_out"): ("training", "query_training"),
    ("GDR", "seed"): ("encoder_training", "training", "joint"),
    ("GDR", "held_out"): ("encoder_training", "training", "joint"),
    ("GDR", "document_length"): ("training", "joint"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """What paths name: encoders, tables and files that nobody reads but for their content."""
    root = tmp_path_factory.mktemp("named")
    for name in ("encoder", "table", "other_table"):
        (root / name).mkdir()
        (root / name / "file").write_text(name)
    for name in ("negatives", "other_negatives"):
        (root / name).write_text(name)
    for name in ("teacher", "other_teacher"):
        with storage.write_folder(root / name, "index", meta={"name": name}) as new:
            (new / "file").write_text(name)
    return {
        "encoder": root / "encoder",
        "PseudoQueries.generated": root / "other_table",
        "Mining.file": root / "other_negatives",
        "table": root / "table",
        "negatives": root / "negatives",
        "teacher": root / "teacher",
        **{f"{name}.teacher": root / "other_teacher" for name in TAUGHT},
    }


def as_tested(name: str, folders: dict[str, pathlib.Path]) -> System:
    """The system as it is by default; with all of its trainings, and with a teacher where it needs one."""
    if name in TAUGHT:
        return NAMED[name](teacher=str(folders["teacher"]))
    return OF_GDR if name == "GDR" else NAMED[name]()


def before(system: System, field: str, name: str, folders: dict[str, pathlib.Path]) -> System:
    """The system in which the setting can be changed alone: with a kind of negatives or queries that reads it, say."""

    def put(where: str, **changes: Any) -> System:
        return dataclasses.replace(system, **{where: dataclasses.replace(one_setting.held(system, where), **changes)})

    if (name, type(one_setting.held(system, field)).__name__ if name else "") == ("generated", "PseudoQueries"):
        return put(field, kinds={"generated": 5, "span": 5}, generated=str(folders["table"]))
    if (type(system).__name__ in _TITLES, field, name) == (True, "training", "rates"):
        return put("pseudo_queries", kinds={"span": 5})
    if name == "vocabulary":
        return put(field, encoder=str(folders["encoder"]))  # which has none of its own
    if name == "optimizer":
        return put(field, weight_decay=0.0)
    if name == "file":
        return put(field, shares={"file": 0.5, "random": 0.5}, file=str(folders["negatives"]))
    if name == "refresh_every":
        if isinstance(system, GDR) and field == "mining":
            system = dataclasses.replace(system, joint=None)
        return put(field, shares={"ance": 0.5, "bm25": 0.5}, refresh_every=50)
    if isinstance(system, GDR) and (field, name) == ("encoders", "similarity"):
        return put("matching", similarity="tanh")
    if isinstance(system, GDR) and (field, name) == ("encoders", "projection"):
        return put("matching", start="pretrained")
    if isinstance(system, DocidWriter) and (field, name) == ("encoders", "projection"):
        return dataclasses.replace(system, start="pretrained")
    return system


def after(system: System, field: str, name: str, value: Any) -> System:
    """The system with the setting changed."""
    changes = {}
    for one in ALIKE.get((type(system).__name__, name), ()):
        if field in ALIKE[type(system).__name__, name] and getattr(system, one) is not None:
            changes[one] = dataclasses.replace(getattr(system, one), **{name: value})
    if changes:
        return dataclasses.replace(system, **changes)
    return one_setting.with_value(system, field, name, value)


def change(system: System, field: str, name: str, folders: dict[str, pathlib.Path]) -> tuple[System, System]:
    """The system before one setting is changed, and after."""
    first = before(system, field, name, folders)
    return first, after(first, field, name, one_setting.other(first, field, name, folders))


def said(field: str, name: str) -> str:
    return f"{field}.{name}" if name else field


# ── By hand: which stages get another key, and of which settings.

TRAINING = (
    "steps batch_size optimizer learning_rate warmup_steps schedule weight_decay clip multipliers evaluate_every "
    "dev_queries keep_best patience checkpoint_every mesh precision not_finite spike spike_factor"
)
# Where and how fast training computes: in no key.
SPEED = "sharding remat"


def each(field: str, names: str) -> list[str]:
    return [f"{field}.{name}" for name in names.split()]


NETWORK = (
    "vocabulary_size decoder width encoder_layers decoder_layers heads mlp_width dropout query_residual outputs "
    "temperature cluster_temperature pawa_layers pawa_width"
)

BM25: dict[str, list[str]] = {
    "results": ["name"],
    "bm25 index results": each("lexical", "k1 b analyzer"),
}

DSI: dict[str, list[str]] = {
    # Of k-means and one docid a document, nothing reads what is of other schemes and of sentences.
    "": [
        "vectors.most_sentences",
        *each("identifiers", "codebooks bits refits duplicates reserved title_tokens"),
        *each("training", SPEED),
    ],
    "hybrid results": ["name"],
    "bm25 hybrid results": each("lexical", "k1 b analyzer"),
    "vectors docids examples model index hybrid results": each("vectors", "encoder max_length passages"),
    "docids examples model index hybrid results": each(
        "identifiers", "scheme branching leaf_capacity tokens seed permuted"
    ),
    "pseudo_queries examples model index hybrid results": [*each("pseudo_queries", "kinds seed generated"), "training"],
    "vocabulary examples model index hybrid results": each("network", "encoder vocabulary"),
    "examples model index hybrid results": each("training", "max_input_length document_words"),
    "model index hybrid results": [
        *each("network", NETWORK),
        *each("training", TRAINING),
        *each("training", "seed row_length row_targets rates normalize label_smoothing rdrop microbatches"),
        "decoding.normalize",  # dev is looked at with it
    ],
    "index hybrid results": each("decoding", "beams max_query_length"),
}

_AFTER_MODEL = "joint_model joint_vectors pieces index hybrid results"
_AFTER_CLUSTERS = f"negatives model {_AFTER_MODEL}"
_AFTER_ENCODER = f"vectors clusters {_AFTER_CLUSTERS}"
CONTRASTIVE = f"{TRAINING} negatives rates chunks dev_documents"
# What decides which questions are drawn, and so which are mined where a search finds negatives.
DRAWS = "steps batch_size rates"
OTHERS = " ".join(name for name in CONTRASTIVE.split() if name not in DRAWS.split())

# With its second training, and without clusters' sentences.
OF_GDR = GDR(joint=systems.gdr.JOINT)
GDR_STAGES: dict[str, list[str]] = {
    # Hierarchical clusters of one docid a document read neither.
    "": [
        *each("clusters", "margin sample"),
        *(one for training in ("encoder_training", "training", "joint") for one in each(training, SPEED)),
    ],
    "hybrid results": ["name"],
    f"bm25 encoder_negatives document_encoder {_AFTER_ENCODER}": each("lexical", "k1 b analyzer"),
    f"vocabulary encoder_pairs encoder_negatives document_encoder {_AFTER_ENCODER}": each(
        "encoders", "encoder vocabulary"
    ),
    f"encoder_negatives document_encoder {_AFTER_ENCODER}": [
        *each(
            "encoders", "vocabulary_size shared pooling projection similarity temperature dropout width layers heads"
        ),
        *each("encoders", "mlp_width pretrained_layers"),
        *each("encoder_mining", "kept skip file"),
        *each("encoder_training", DRAWS),
    ],
    f"encoder_pairs encoder_negatives document_encoder {_AFTER_ENCODER}": [
        *each("encoders", "query_length document_prefix"),
        *each("encoder_training", "seed held_out"),
        *each("training", "seed held_out"),
        *each("joint", "seed held_out"),
    ],
    # Training reads fewer tokens of a document, as many as it says.
    f"document_encoder {_AFTER_ENCODER}": [
        "encoders.document_length",
        *each("encoder_training", f"{OTHERS} in_batch margin_mse teacher_kl"),
        *each("encoder_mining", "shares clusters seed refresh_every"),
    ],
    # Pairs of both trainings are the same, as long as both read as much of a document.
    f"encoder_pairs encoder_negatives document_encoder pairs {_AFTER_ENCODER}": [
        "encoder_training.document_length",
        "encoder_training",
    ],
    f"pairs {_AFTER_CLUSTERS}": each("training", "document_length") + each("joint", "document_length"),
    f"pseudo_queries encoder_pairs encoder_negatives document_encoder {_AFTER_ENCODER}": each(
        "pseudo_queries", "kinds seed generated"
    ),
    f"clusters {_AFTER_CLUSTERS}": each("clusters", "algorithm budget branching most_docids tokens seed"),
    f"negatives model {_AFTER_MODEL}": each("mining", "kept clusters seed file"),
    f"model {_AFTER_MODEL}": [
        *each("network", f"encoder vocabulary {NETWORK}"),
        *each("matching", "start similarity temperature alpha intra_weight rdrop"),
        *each("mining", "shares skip"),
        *each("training", CONTRASTIVE),
        "training",
        *each("search", "beams normalize length_penalty betas most_share codes"),  # dev's looks, too
    ],
    "model index hybrid results": ["mining.refresh_every"],  # which a second training does not have
    _AFTER_MODEL: [*each("joint", CONTRASTIVE), "joint"],
    "index hybrid results": each("search", "chosen measure backend max_query_length"),
    # Nothing then reads the second training's vectors of whole documents.
    "joint_vectors passage_vectors pieces index hybrid results": ["most_sentences"],
    "pieces index hybrid results": ["unread"],
}
BY_HAND = {"BM25": (systems.BM25(), BM25), "DSI": (systems.DSI(), DSI), "GDR": (OF_GDR, GDR_STAGES)}
# Of `trained`, whose folder is a finished run: tests/systems/gdr.
ELSEWHERE = {"trained"}


@pytest.mark.parametrize("name", BY_HAND)
def test_exactly_the_expected_stages_get_another_key(name, folders):
    system, table = BY_HAND[name]
    expected = {setting: stages.split() for stages, settings in table.items() for setting in settings}
    wrong = {}
    for field, one in one_setting.settings_of(system):
        setting = said(field, one)
        if setting in ELSEWHERE:
            continue
        if f"{name} {setting}" in REFUSED:
            with pytest.raises(InputError, match=REFUSED[f"{name} {setting}"]):
                change(system, field, one, folders)
            continue
        found = one_setting.changed(*map(one_setting.stages, change(system, field, one, folders)))
        if found != {*expected.pop(setting, ["(not in the table)"])}:
            wrong[setting] = sorted(found)
    assert not wrong and not expected


# ── By rule: which stages read settings of a class themselves; what follows them changes with them.

_RESULTS = {"results"}  # which say seeds, pseudo-queries and names
_ENCODER = {"encoder_pairs", "encoder_negatives", "document_encoder"}
_RANKED = {"asked_questions", "candidates", "model"}
_ROUNDS = {
    f"{name}{number}"
    for name in ("candidates", "student", "student_index", "teacher_scores")
    for number in ("", "_1", "_2")
}
# What comes, or reads another vocabulary, where the encoder that makes it is trained before.
_ALIGNED = {"aligned", "examples_to_align", "aligned_title_states", "aligned_vocabulary", "examples", "model", "index"}
READ_BY: dict[str, set[str]] = {
    "BM25": _RESULTS,
    "DPR": {"hybrid", *_RESULTS},
    "DSI": {"hybrid", *_RESULTS},
    # With documents that are read once, other stages train and project.
    "ColBERT": {"hybrid", "frozen_encoder", "document_states", "model", "token_vectors", *_RESULTS},
    "BM25CrossEncoder": _RESULTS,
    "BM25DocT5Query": _RESULTS,
    "NCI": {"model", "hybrid", *_RESULTS},
    "DSIClusters": {"model", "hybrid", *_RESULTS},
    "DSIQG": {"hybrid", *_RESULTS},
    "SEAL": {"model", "hybrid", *_RESULTS},
    "MINDER": {"model", "hybrid", *_RESULTS},
    "LTRGR": {*_RANKED, *_ROUNDS, "hybrid", *_RESULTS},
    "DGR": {*_RANKED, *_ROUNDS, "hybrid", *_RESULTS},
    "DSIDGR": {*_RANKED, *_ROUNDS, "hybrid", *_RESULTS},
    **{name: {"model", "hybrid", *_RESULTS} for name in _TITLES},
    "CGRContra": {"model", "hybrid", "contextual_vocabulary", *_ALIGNED, *_RESULTS},
    "Contextual": {"title_states", "contextual_vocabulary", *_RESULTS},
    "Aligning": {"aligned"},
    "TitleDecoding": {"index", "model", *_RESULTS},
    "Distilling": _RANKED,
    "DocidDistilling": {*_RANKED, *_RESULTS},
    "NgramWriting": {"vocabulary", "ngrams", "model", *_RESULTS},
    "Asking": {"model", "index"},
    "GDR": {"index", "hybrid", "joint_vectors", "passage_vectors", "pieces", *_RESULTS},
    "Lexical": {"bm25"},
    "Vectors": {"vectors", "examples", "docids"},
    "Identifiers": {"docids", *_RESULTS},
    "PseudoQueries": {"pseudo_queries", *_RESULTS},
    "Clusters": {"clusters", "docids", *_RESULTS},
    "Network": {"vocabulary", "query_vocabulary", "model", "joint_model"},
    "Matching": {"model", "joint_model", "index"},
    "Encoders": {"vocabulary", "pairs", "negatives", "model", "joint_model", "index", "pair_texts", *_ENCODER},
    "Mining": {"negatives", "encoder_negatives", "document_encoder", "model", "query_model", "joint_model", *_RESULTS},
    "Search": {"index", "passage_embeddings", "pieces", "hybrid", *_RESULTS},
    "Decoding": {"index", "model", *_RESULTS},
    "ClusterSearch": {"model", "joint_model", "index"},
    "Interaction": {"model", "token_vectors", "index"},
    "Crossing": {"model", "index"},
    "QueryGenerating": {"vocabulary", "generator", "generated", *_RESULTS},
    "GeneratedQueries": {"generated", *_RESULTS},
    "Training": {"examples", "model", "pseudo_queries", *_RESULTS},
    "ContrastiveTraining": {
        "pseudo_queries", "pairs", "pair_texts", "negatives", "model", "query_model", "joint_model", "joint_vectors",
        "pieces", "index", *_ENCODER, *_RESULTS,
    },
}  # fmt: skip
# BM25 of expanded documents is another index than BM25's.
_GENERATOR = {"generator_vocabulary", "vocabulary"}  # which are one where both read alike
ALSO_READ_BY = {
    ("BM25DocT5Query", "Lexical"): {"index"},
    ("DSIQG", "Training"): {"generator", "generated"},  # without training nothing is generated
    ("DSIQG", "Network"): _GENERATOR,
    ("DSIQG", "QueryGenerating"): _GENERATOR,
    **{(name, "QueryGenerating"): _GENERATOR for name in _MINDERS},
    ("MINDER", "NgramWriting"): _GENERATOR,
    **{(name, "NgramWriting"): {"student", "student_index", *_GENERATOR} for name in ("LTRGR", "DGR")},
    **{(name, "Asking"): {"student", "student_index"} for name in ("LTRGR", "DGR")},
    # An encoder that was trained makes the vocabulary.
    **{(name, "Contextual"): {"aligned_title_states", "aligned_vocabulary", "model"} for name in _TITLES[2:]},
    **{(name, "Training"): {"aligned", "examples_to_align"} for name in _TITLES[2:]},
    **{(name, one): {"aligned"} for name in _TITLES[2:] for one in ("Network", "TitleDecoding")},
    **{(name, "Aligning"): {*_ALIGNED, *_RESULTS} for name in _TITLES[2:4]},
    **{("DSIDGR", name): {"student", "student_index"} for name in ("Network", "Training", "Decoding")},
}
# What is for answering alone trains nothing again.
ANSWERS = {
    "Search": None,
    "Decoding": {"beams", "max_query_length"},
    "ClusterSearch": {"chosen", "measure", "backend", "max_query_length"},
    "Interaction": {"precision", "first", "depth"},
    "Asking": {"max_query_length"},
    "TitleDecoding": {"beams", "merge", "max_query_length"},
}
# Settings that change nothing in a system as it is by default, and why.
NOTHING_READS = {
    "DSI": {setting for setting in DSI[""]},
    "DSIQG": {setting for setting in DSI[""]},
    "DSIDGR": {setting for setting in DSI[""]},
    "GDR": {setting for setting in GDR_STAGES[""]},
    "DSIClusters": {"clusters.margin": "one docid a document", "clusters.sample": "no agglomerative clusters"},
    "NCI": {
        f"identifiers.{name}": "of another scheme"
        for name in ("codebooks", "bits", "refits", "duplicates", "reserved", "title_tokens")
    },
    "DPR": dict.fromkeys(
        each("vectors", "encoder max_length passages most_sentences"), 'no negatives of the kind "cluster"'
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_is_read_by_the_stages_of_its_class_and_by_no_others(name, folders):
    system = as_tested(name, folders)
    quiet, wrong = set(NOTHING_READS.get(name, ())), {}
    for field, one in one_setting.settings_of(system):
        setting = said(field, one)
        if setting in ELSEWHERE or f"{name} {setting}" in REFUSED:
            continue
        cls = _class_of(system, field)
        old, new = map(one_setting.stages, change(system, field, one, folders))
        readers, moved = one_setting.first_changed(old, new), one_setting.changed(old, new)
        allowed = READ_BY[cls] | ALSO_READ_BY.get((name, cls), set())
        if not one:  # what is off takes its stages along
            allowed |= READ_BY[type(system).__name__]
        on = bool(one) and getattr(system, field) is not None  # what is off is turned on by any of its settings
        speed = on and one_setting.rules_of(type(getattr(system, field)), one).speed
        if not readers <= allowed or bool(moved) == (speed or setting in quiet):
            wrong[setting] = sorted(readers)
        if one in (ANSWERS.get(cls) or ()) or (cls in ANSWERS and ANSWERS[cls] is None):
            assert not any(new[moved_one].function.trains for moved_one in moved & {*new}), setting
        # What follows is made again, to the last: a key is over the keys that it stands on.
        keys = {stage.key for stage in old.values()}
        for stage in new.values():
            stands_on_new = any(upstream.key not in keys for upstream in stage.upstream())
            assert stage.name in moved or not stands_on_new, setting
        assert not moved or "results" in moved, setting
    assert not wrong


def _class_of(system: System, field: str) -> str:
    value = getattr(system, field)
    if isinstance(value, Settings):
        return type(value).__name__
    kind = one_setting.settings_class(one_setting.types_of(type(system))[field])
    return type(system).__name__ if kind is None else kind.__name__


@pytest.mark.parametrize("name", NAMED)
def test_settings_that_are_refused_are_named(name, folders):
    system = as_tested(name, folders)
    for field, one in one_setting.settings_of(system):
        words = REFUSED.get(f"{name} {said(field, one)}")
        if words is not None:
            with pytest.raises(InputError, match=words):
                change(system, field, one, folders)
    known = {f"{name} {said(field, one)}" for field, one in one_setting.settings_of(system)}
    assert {one for one in REFUSED if one.startswith(f"{name} ")} <= known


def test_settings_of_other_schemes_count_where_they_are_read(folders):
    """What is quiet by default."""
    dsi = systems.DSI()

    def moved(base: System, field: str, one: str) -> set[str]:
        other = one_setting.with_value(base, field, one, one_setting.other(base, field, one, folders))
        return one_setting.changed(one_setting.stages(base), one_setting.stages(other))

    of_sentences = dataclasses.replace(dsi, vectors=systems.Vectors(passages="sentences"))
    assert moved(of_sentences, "vectors", "most_sentences") >= {"vectors", "docids", "model"}
    codes = dataclasses.replace(dsi, identifiers=systems.Identifiers(scheme="residual_quantization"))
    for one in ("codebooks", "bits", "refits", "duplicates"):
        assert moved(codes, "identifiers", one) == {"docids", "examples", "model", "index", "hybrid", "results"}
    assert moved(codes, "identifiers", "branching") == set() == moved(codes, "identifiers", "reserved")
    identifiers = dataclasses.replace(codes.identifiers, duplicates="reserved")
    reserved = dataclasses.replace(dsi, identifiers=identifiers)
    assert moved(reserved, "identifiers", "reserved") == {"docids", "examples", "model", "index", "hybrid", "results"}
    gdr = dataclasses.replace(OF_GDR, clusters=systems.Clusters(most_docids=2))
    assert "clusters" in moved(gdr, "clusters", "margin")
    gdr = dataclasses.replace(OF_GDR, clusters=systems.Clusters(algorithm="agglomerative"))
    assert "clusters" in moved(gdr, "clusters", "sample")
    dpr = systems.DPR(mining=systems.Mining(shares={"cluster": 1.0}))
    assert moved(dpr, "vectors", "max_length") >= {"vectors", "negatives", "model"}
    assert moved(dpr, "mining", "clusters") >= {"negatives", "model"}


def test_few_beams_are_those_of_dev_too():
    beams = [one_setting.stages(systems.DSI(decoding=systems.Decoding(beams=beams))) for beams in (100, 64, 10)]
    assert one_setting.changed(*beams[:2]) == {"index", "hybrid", "results"}
    assert one_setting.changed(*beams[1:]) == {"model", "index", "hybrid", "results"}


def test_gin_binds_systems_settings_and_sources_alone():
    """Nothing that a stage calls: what gin bound there would be in no key."""
    found = {name: one.wrapped for name, one in gin.config._REGISTRY.items()}
    ours = {name for name in found if name.startswith("gr_jax.")}
    assert {name for name in ours if not (isinstance(found[name], type) and issubclass(found[name], Settings))} == {
        "gr_jax.run"
    }
