"""Runs of benchmarks: what decides their results, and the versions of what they run, without running or reading."""

import dataclasses
import gzip

import pytest

from benchmarks import (
    combination,
    dense_quality,
    derived_data,
    gdr_quality,
    gdr_scaling,
    main_job,
    recipe_runs,
    records,
    resolved,
)
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError
from gr_jax.stages import bi_encoder, document_encoder, sources
from gr_jax.stages.documents import corpus
from gr_jax.stages.settings import Settings
from gr_jax.stages.write_docids import Training
from gr_jax.systems.gdr import learning
from tests import small_data


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(sources.BeirFolder, "identity", lambda self: pytest.fail("files are read"))


def test_settings_are_resolved_and_one_seed_reaches_all_trainings():
    _, run, _ = gdr_quality.small("gdr", on=None, trained=False)
    own, *others = run.configs()
    assert others == [] and own["system"] == "GDR" and own["data"] == "squad_dev"
    settings = own["settings"]
    assert settings["training"]["seed"] == settings["encoder_training"]["seed"] == settings["clusters"]["seed"] == 1
    assert (settings["training"]["steps"], settings["encoder_training"]["steps"]) == (200, 60)
    assert settings["joint"] is None and settings["most_sentences"] is None


def test_what_is_off_by_a_flag_is_none():
    settings = dense_quality.ZERO_SHOT["squad_dev"].configs()[0]["settings"]
    assert settings["training"] is None and settings["query_training"] is None
    assert settings["encoders"]["document_length"] == 128
    settings = gdr_scaling.run("dsi_clusters", "10k", "untrained").configs()[0]["settings"]
    assert settings["training"] is None and settings["encoder_training"] is None


def test_a_second_training_is_turned_on_again_over_a_budget_without():
    settings = gdr_quality.bi_encoder(2).configs()[0]["settings"]
    second = {
        name: settings["query_training"][name] for name in ("steps", "batch_size", "negatives", "seed", "held_out")
    }
    assert second == {"steps": 200, "batch_size": 64, "negatives": 8, "seed": 2, "held_out": 0.05}
    assert settings["training"]["steps"] == 60 and settings["training"]["batch_size"] == 32


def test_another_run_that_is_taken_from_decides_too():
    run = gdr_quality.small("gdr", seeds=(0,))[0]
    own, encoder = run.configs()
    assert own["takes"] == ["encoder"] and own["settings"]["trained"] == "encoder"
    assert "encoder_training" not in own["settings"]  # there is none
    assert encoder == gdr_quality.encoder(0).configs()[0] and encoder["system"] == "DPR"
    other = dataclasses.replace(run, encoder=gdr_quality.encoder(1)).configs()
    assert other[0] == own and other[1] != encoder
    assert run.versions()["GDR.taken"] == 1 and "GDR.untrained" not in run.versions()
    assert run.versions()["DPR.bi_encoder"] == 1 and "GDR.bi_encoder" not in run.versions()


def test_the_order_of_kinds_decides():
    runs = [
        RecipeRun("g", "squad_dev", "dpr", flags=(f"PseudoQueries.kinds={kinds}",))
        for kinds in ({"title": 1, "span": 2}, {"span": 2, "title": 1})
    ]
    one, other = (run.configs()[0] for run in runs)
    assert one["settings"] == other["settings"] and one["settings_digest"] != other["settings_digest"]


def test_the_subset_and_the_source_decide():
    run = RecipeRun("g", "wiki_intro_179k", "dpr", subset="10k")
    assert run.configs()[0]["subset"] == "10k" and run.configs()[0]["source"]["class"] == "BeirFolder"
    assert main_job.LARGE.configs()[0]["subset"] == "100k"
    quickstart = RecipeRun("main_job", "python_docs", "quickstart").configs()[0]
    assert quickstart["source"] == {"class": "PythonDocs", "packages": None}


def test_versions_are_those_of_the_functions(monkeypatch):
    run = RecipeRun("g", "squad_dev", "dpr", "versions")
    before = run.versions()
    assert before["DPR.bi_encoder"] == 1 and before["DPR.corpus"] == corpus.version
    monkeypatch.setattr(bi_encoder.bi_encoder, "version", 7)
    assert dataclasses.replace(run, label="raised").versions() == {**before, "DPR.bi_encoder": 7}


def test_two_functions_of_one_name_have_versions_of_their_own(monkeypatch):
    monkeypatch.setattr(learning.untrained, "version", 3)
    found = resolved.versions(gdr_scaling.run("gdr", "10k", "untrained").resolved())
    assert found["GDR.learning.untrained"] == 3
    assert found["GDR.bi_encoder.untrained"] == bi_encoder.untrained.version


def test_a_command_names_data_other_runs_and_what_is_bound(monkeypatch, tmp_path):
    run = gdr_quality.small("gdr", "label", "Clusters.budget=100", seeds=(0,))[0]
    with pytest.raises(InputError, match="GR_JAX_SHARED_DATA"):
        run.arguments()
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    (tmp_path / "squad_dev").mkdir()
    arguments = run.arguments()
    assert arguments[:2] == ["--gin_file=gin_configs/systems/gdr.gin", "--gin_file=gin_configs/budgets/small_gdr.gin"]
    assert f'--gin.CORPUS="{tmp_path}/squad_dev"' in arguments
    assert f'--gin.GDR.trained="{gdr_quality.encoder(0).folder}"' in arguments
    assert arguments[-3:] == [
        "--gin.Clusters.budget=100",
        "--gin.ContrastiveTraining.seed=0",
        "--gin.Clusters.seed=0",
    ]


def test_wrong_settings_are_named():
    with pytest.raises(InputError, match="DSI"):
        RecipeRun("g", "squad_dev", "dpr", flags=("training/Training.steps=3",)).configs()


def test_settings_as_json_leave_out_what_is_neutral():
    encoders = document_encoder.ENCODERS
    assert isinstance(encoders, Settings) and "pretrained_layers" not in resolved.plain(encoders)
    assert resolved.plain(dataclasses.replace(encoders, pretrained_layers=0))["pretrained_layers"] == 0


def test_settings_as_json_leave_out_what_is_of_speed_alone():
    found = resolved.plain(Training(sharding="fsdp", remat="layers", steps=70))
    assert found["steps"] == 70 and not {"sharding", "remat"} & found.keys()


def test_the_folder_of_an_input_is_found_whatever_its_function_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_runs.harness, "CHECKOUT", tmp_path)
    run = RecipeRun("g", "squad_dev", "dsi_clusters", "inputs")
    (run.folder / "model").mkdir(parents=True)
    (run.folder / "model" / "manifest.json").write_text('{"meta": {"inputs": {"docids": "0123"}}}')
    with pytest.raises(InputError, match="docids"):
        run.input_folder("model", "docids")
    (run.folder.parent / "shared" / "numbered-0123").mkdir(parents=True)
    assert run.input_folder("model", "docids").name == "numbered-0123"


def test_a_model_file_changes_the_settings():
    own, unspaced = (
        RecipeRun("some", "mine", "seal", model=model).configs()[0]["settings"] for model in ("", "unspaced")
    )
    assert own["writing"]["encoder"] == "minilm" and unspaced["writing"]["encoder"] == "t5"
    assert unspaced["lexical"]["analyzer"] == "character_bigrams"


def test_a_part_of_the_documents_is_given_or_made(monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_runs.harness, "CHECKOUT", tmp_path)
    lines = "".join(f'{{"_id": "d{i}", "text": "text {i}"}}\n' for i in range(1500))
    (tmp_path / "data" / "subsets").mkdir(parents=True)
    (tmp_path / "data" / "corpus.jsonl").write_text(lines)
    (tmp_path / "data" / "subsets" / "10k.ids.gz").touch()
    assert derived_data.subset(tmp_path / "data", "10k") == tmp_path / "data" / "subsets" / "10k.ids.gz"
    ids = derived_data.subset(tmp_path / "data", "1k").read_text().split()
    assert len(set(ids)) == 1000 and (ids[0], ids[-1]) == ("d0", "d1499")
    for wrong in ("2k", "1000", "some"):
        with pytest.raises(InputError):
            derived_data.subset(tmp_path / "data", wrong)


def test_few_questions_are_those_of_all_splits_among_more_documents(monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_runs.harness, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    whole = read_beir(small_data.write_beir(tmp_path / "animals", count=24))
    run = RecipeRun("g", "animals", "seal", questions=4)
    (folder,) = (one.removeprefix('--gin.CORPUS="').rstrip('"') for one in run.arguments() if "CORPUS" in one)
    part = read_beir(folder)
    assert len(part.corpus) == 16 and set(part.corpus.doc_ids) < set(whole.corpus.doc_ids)
    first = dict(list(whole.split("train").items())[:4])
    assert {split: dict(part.split(split)) for split in ("train", "dev", "test")} == dict.fromkeys(part.qrels, first)
    assert part.query_texts(list(first)) == whole.query_texts(list(first))
    assert run.fingerprint() == part.corpus.fingerprint and run.folder.name == "animals-4_questions-seal"


def test_every_document_has_a_question_of_its_own_words(monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_runs.harness, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    folder = small_data.write_beir(tmp_path / "animals", count=24)
    whole = read_beir(folder)
    (folder / "subsets").mkdir()
    for name, count in (("few", 8), ("more", 20)):
        ids = "".join(f"{one}\n" for one in whole.corpus.doc_ids[:count])
        (folder / "subsets" / f"{name}.ids.gz").write_bytes(gzip.compress(ids.encode()))
    few, more = (RecipeRun("g", "animals", "seal", every_document=name) for name in ("few", "more"))
    made, larger = read_beir(few.source), read_beir(more.source)
    given = read_beir(folder, subset=folder / "subsets" / "few.ids.gz")
    assert made.corpus.fingerprint == given.corpus.fingerprint == few.fingerprint() and len(larger.corpus) == 20
    assert {split: made.split(split) for split in ("dev", "test")} == {s: given.split(s) for s in ("dev", "test")}
    own = {one: grades for one, grades in made.split("train").items() if one not in given.split("train")}
    assert made.split("train") == {**given.split("train"), **own}
    assert list(own.values()) == [{one: 1} for one in made.corpus.doc_ids]
    for one, text in zip(own, made.query_texts(list(own)), strict=True):
        (document,) = own[one]
        found = made.corpus[made.corpus.index_of(document)].text
        assert text in found and len(text.split()) <= 16 and text != found
        assert larger.query_texts([one]) == [text]
    assert few.folder.name == "animals-few_every_document-seal" and few.configs() != more.configs()
    with pytest.raises(InputError, match="several kinds"):
        dataclasses.replace(few, subset="few")


def test_few_labels_leave_all_questions(monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_runs.harness, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setenv("GR_JAX_SHARED_DATA", str(tmp_path))
    whole = read_beir(small_data.write_beir(tmp_path / "animals", count=24))
    run = RecipeRun("g", "animals", "seal", labels=5)
    few, none = (read_beir(dataclasses.replace(run, labels=labels).source) for labels in (5, 0))
    assert few.queries == none.queries == whole.queries and not none.qrels
    assert few.corpus.fingerprint == none.corpus.fingerprint == run.fingerprint() == whole.corpus.fingerprint
    assert len(few.split("train")) == 5 and few.split("train").items() <= whole.split("train").items()
    assert few.split("test") == whole.split("test") and run.folder.name == "animals-5_labels-seal"
    assert run.configs() != dataclasses.replace(run, labels=None).configs()
    with pytest.raises(InputError, match="there are 24 training questions"):
        _ = RecipeRun("g", "animals", "seal", labels=25).source


def test_a_subclass_of_a_system_is_resolved_as_itself_with_its_teacher():
    teacher = RecipeRun("g", "squad_dev", "bm25")
    for system, name in (("dgr", "DGR"), ("dgr_dsi", "DSIDGR")):
        own, other = RecipeRun("g", "squad_dev", system, teacher=teacher, taught_by="").configs()
        assert (own["system"], own["settings"]["teacher"], own["taught_by"]) == (name, "teacher", "")
        assert other["system"] == "BM25"


def test_sets_are_counted_from_what_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(combination.harness, "RESULTS", tmp_path)
    row = combination.split_rows()[0]
    stale = records.Record({"RR@10 BM25": 1.0}, "another key", {}, "", (), "", "", "", 0.0)
    records.write(tmp_path / "combination.json", row.name, stale)
    with pytest.raises(InputError, match="missing or stale"):
        combination.above_both()
    values = {"RR@10 BM25 + GDR": 0.6, "RR@10 BM25": 0.5, "RR@10 GDR": 0.5, "p BM25": 0.01, "p GDR": 0.01}
    changed = [{}, {"p GDR": 0.05}, {"RR@10 BM25": 0.6}, {"p BM25": 0.049}]
    for (data, splits), change in zip(combination.SPLITS.items(), changed, strict=True):
        (row,) = [one for one in combination.split_rows() if one.name == f"{data} {splits[0]} BM25 + GDR"]
        its = dict(key=row.key(""), digest=records.digest(row.versions()), versions=row.versions())
        record = records.Record(
            values | change, config={}, corpus="", seeds=(), commit="", hardware="", date="", seconds=0, **its
        )
        records.write(tmp_path / "combination.json", row.name, record)
    assert combination.above_both() == {"sets with p < .05": 2}


@pytest.mark.parametrize(
    "system, taken_from, first", [("dsi_qg", "bm25_doct5query", "make"), ("minder", "minder", "train")]
)
def test_generated_queries_are_taken(monkeypatch, system, taken_from, first):
    """docT5query writes them when it has trained; MINDER writes them before it trains."""
    done = []
    monkeypatch.setattr(RecipeRun, "make", lambda run: done.append(("make", run.system)))
    monkeypatch.setattr(RecipeRun, "train", lambda run: done.append(("train", run.system)))
    monkeypatch.setattr(recipe_runs, "copy_stage", lambda made, to: done.append((made.name, to.name)))
    RecipeRun("g", "animals", system, "taking", trained=RecipeRun("g", "animals", taken_from))._take()
    assert done == [(first, taken_from), ("generator", "generator"), ("generated", "generated")]
