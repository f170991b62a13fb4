"""New keys of recorded rows: only where nothing that decides them is different, and comparisons found nothing."""

import copy
import dataclasses
import json
import types

import pytest

import benchmarks
from benchmarks import harness, records, rekey
from benchmarks.harness import Row
from benchmarks.recipe_runs import RecipeRun
from benchmarks.records import Record

DSI, BM25 = RecipeRun("g", "squad_dev", "dsi"), RecipeRun("g", "squad_dev", "bm25")
# As the settings were written down before, what is off as 0 or "".
OLD_DSI = {
    "name": "DSI",
    "vectors": {"encoder": "minilm", "max_length": 256, "passages": "document", "most_sentences": 12},
    "identifiers": {
        "scheme": "hierarchical_kmeans", "branching": 64, "leaf_capacity": 1000, "tokens": "node", "seed": 0,
        "codebooks": 3, "bits": 8, "duplicates": "number", "title_tokens": 24,
    },
    "pseudo_queries": {
        "kinds": {"title": 1, "sentence": 6, "span": 6, "cloze": 12}, "seed": 0, "generated": "",
    },
    "network": {
        "encoder": "minilm", "vocabulary": "pretrained", "vocabulary_size": 8000, "width": 384, "encoder_layers": 2,
        "decoder_layers": 2, "heads": 6, "mlp_width": 1024, "dropout": 0.1, "query_residual": True,
        "outputs": "centroid", "temperature": 0.05, "cluster_temperature": 1.0, "pawa_layers": 0,
    },
    "training": {
        "steps": 1000, "batch_size": 16, "row_length": 64, "row_targets": 32, "max_input_length": 48,
        "document_words": 64, "rates": {"query": 0.6, "document": 0.03, "pseudo": 0.37}, "optimizer": "adamw",
        "learning_rate": 1e-3, "warmup_steps": 30, "schedule": "linear", "weight_decay": 0.0, "clip": 1.0,
        "multipliers": None, "normalize": "level", "label_smoothing": 0.0, "rdrop": 0.0, "microbatches": 1,
        "evaluate_every": 100, "dev_queries": 400, "keep_best": "dev/RR@10", "patience": 0, "checkpoint_every": 200,
        "mesh": [0, 1], "seed": 0,
    },
    "decoding": {"beams": 100, "normalize": "level", "max_query_length": 64},
}  # fmt: skip
BEIR = {"class": "BeirFolder", "folder": "", "subset": "", "transform": "none"}


def old(settings: dict, **about) -> dict:
    return {"data": "squad_dev", "subset": "", "source": BEIR, "settings": settings, **about}


def changed(*path, value) -> dict:
    settings = copy.deepcopy(OLD_DSI)
    place = settings
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return settings


def test_equal_settings_have_no_differences_whatever_off_is_called():
    assert rekey.differences(old(OLD_DSI), DSI) == []
    untrained = dataclasses.replace(DSI, flags=("DSI.training=None",))
    assert rekey.differences(old(changed("training", "steps", value=0)), untrained) == []


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (old(changed("training", "rdrop", value=0.15)), "training.rdrop: 0.15 → None"),
        (old(changed("training", "seed", value=1)), "training.seed: 1 → 0"),
        (old(changed("training", "patience", value=2)), "training.patience: 2 → None"),
        (old(changed("network", "dropout", value=0.0)), "network.dropout: 0.0 → 0.1"),
        (old(changed("identifiers", "branching", value=[64])), "identifiers.branching: [64] → 64"),
        (old(changed("decoding", "extra", value=3)), "decoding.extra: 3 → None"),
        (old({**OLD_DSI, "lexical": {"k1": 1.2, "b": 0.4, "analyzer": "english"}}), "lexical.k1: 1.2 → 0.9"),
        (
            old(changed("pseudo_queries", "kinds", value={"sentence": 6, "title": 1, "span": 6, "cloze": 12})),
            "pseudo_queries.kinds: ",
        ),
        (old(changed("training", "rates", "query", value=0.5)), "training.rates.query: 0.5 → 0.6"),
        (old(OLD_DSI, data="other"), "data: other → squad_dev"),
        (old(OLD_DSI, subset="10k"), "subset: 10k → "),
        (old(OLD_DSI, encoder="dense/x"), "encoder: dense/x → None"),
        (old(OLD_DSI, source={**BEIR, "transform": "split_identifiers"}), "source: "),
    ],
)
def test_a_difference_is_named(before, says):
    (line,) = rekey.differences(before, DSI)
    assert line.startswith(says)


def test_a_network_that_was_drawn_by_another_seed_is_another():
    untrained = dataclasses.replace(DSI, flags=("DSI.training=None",))
    settings = changed("training", "steps", value=0)
    settings["training"]["seed"] = 4
    assert rekey.differences(old(settings), untrained) == ["training.seed: 4 → 0"]
    assert rekey.differences(old(OLD_DSI), untrained)  # it was trained


def record(key: str = "k", **changes) -> Record:
    told = {"values": {"x": 0.5}, "key": key, "config": {"recipe": "dsi"}, "corpus": "c", "seeds": (0,)}
    told |= {"commit": "measured", "hardware": "h", "date": "d", "seconds": 1.0}
    return Record(**{**told, **changes})


ROW = Row("dsi", {"split": "test"}, dict, corpus="other", seeds=(0,), runs=[DSI])
RUNS, WAS, EQUAL = {"g/squad_dev-dsi": old(OLD_DSI)}, {"key": "k", "state": ""}, {"DSI": "compared"}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"was": {"key": "k", "state": "stale: x"}}, "did not count before: stale: x"),
        ({"was": {"key": "another", "state": ""}}, "did not count before: another record"),
        ({"runs": {}}, "g/squad_dev-dsi: not run before"),
        ({"runs": {"g/squad_dev-dsi": old(changed("decoding", "beams", value=5))}}, "g/squad_dev-dsi: decoding.beams"),
        ({"equal": {"GDR": "compared"}}, "g/squad_dev-dsi: DSI was not shown to be equal"),
    ],
)
def test_what_speaks_against_a_new_key(told, says):
    given = {"was": WAS, "runs": RUNS, "equal": EQUAL}
    assert rekey.why_not(ROW, record(), **given) == []
    (line,) = rekey.why_not(ROW, record(), **{**given, **told})
    assert line.startswith(says)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Comparisons of two systems and a benchmark with three rows, the last of another system than was compared."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    systems = [types.SimpleNamespace(name=name, new=(f"systems/{name}",)) for name in ("dsi", "dsi_codes", "bm25")]
    monkeypatch.setattr(benchmarks, "golden_systems", types.SimpleNamespace(SYSTEMS=systems), raising=False)
    passed = {"parameters equal": 1.0, "other arrays equal": 1.0, "runs equal": 1.0}
    for system in systems:
        values = passed if system.name != "bm25" else {**passed, "runs equal": 0.9}
        records.write(tmp_path / "golden.json", system.name, record(values=values, config={"new": "compared"}))
    plain = Row("kernel", {"size": 3}, dict)
    rows = [ROW, plain, dataclasses.replace(ROW, name="bm25", runs=[BM25])]
    records.write(tmp_path / "toy.json", "dsi", record())
    records.write(tmp_path / "toy.json", "kernel", record(key=plain.key(""), config={"size": 3}, corpus="", seeds=()))
    records.write(tmp_path / "toy.json", "bm25", record())
    monkeypatch.setattr(rekey.importlib, "import_module", lambda name: types.SimpleNamespace(rows=lambda: rows))
    lexical = {"k1": 0.9, "b": 0.4, "analyzer": "english"}
    runs = {**RUNS, "g/squad_dev-bm25": old({"name": "BM25", "lexical": lexical})}
    before = {"rows": {"toy": {name: WAS for name in ("dsi", "bm25")}}, "runs": runs}
    (tmp_path / "before.json").write_text(json.dumps(before))  # mappings in their order
    return tmp_path, rows


def test_a_row_is_rekeyed_once_and_counts_then(results, capsys):
    folder, rows = results
    arguments = [f"--before={folder / 'before.json'}", f"--golden={folder / 'golden.json'}"]
    text = (folder / "toy.json").read_text()
    assert rekey.main(arguments) == 1 and (folder / "toy.json").read_text() == text
    assert rekey.main([*arguments, "--write"]) == 1
    out = capsys.readouterr().out
    assert "toy: 1 of 3 rows get new keys, 1 are refused" in out
    assert "bm25: g/squad_dev-bm25: BM25 was not shown to be equal" in out
    found = records.read(folder / "toy.json")
    assert [harness.state(row, found) for row in rows[:2]] == ["", ""] and harness.state(rows[2], found)
    new = found["dsi"]
    assert new.rekeyed == {"commit": "compared", "systems": ["DSI"]}
    assert (new.values, new.commit, new.date, new.corpus) == ({"x": 0.5}, "measured", "d", "c")
    assert new.versions == DSI.versions() and new.config == {"split": "test"}
    assert found["bm25"] == record() and found["kernel"].rekeyed is None
    text = (folder / "toy.json").read_text()
    assert rekey.main([*arguments, "--write"]) == 1 and (folder / "toy.json").read_text() == text


def test_a_comparison_of_what_no_commit_has_shows_nothing(results, capsys):
    folder, _ = results
    assert rekey.shown_equal(folder / "golden.json") == {"DSI": "compared"}
    codes = records.read(folder / "golden.json")["dsi_codes"]
    changed = dataclasses.replace(codes, config={"new": "compared+changes"})
    records.write(folder / "golden.json", "dsi_codes", changed)
    assert rekey.shown_equal(folder / "golden.json") == {}
    assert "dsi_codes: not shown to be equal" in capsys.readouterr().err
    assert rekey.main([f"--before={folder / 'before.json'}", f"--golden={folder / 'nothing.json'}"]) == 2
