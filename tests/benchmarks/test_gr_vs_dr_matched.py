"""The mode of the study of growth that trains towards every document: equal trainings, and pairs that are all seen."""

import numpy as np
import pytest

from benchmarks import gr_vs_dr_growth, gr_vs_dr_matched, grown
from gr_jax.evaluation import Evaluation
from gr_jax.stages.write_docids import Training
from gr_jax.training.batches import make_batches
from gr_jax.training.token_store import TokenStore

IDS = tuple(f"q{number}" for number in range(40))
PARTS = tuple(gr_vs_dr_matched.PARTS)


MEASURES = gr_vs_dr_growth.MEASURES


def settings_of(part: str, seed: int = 0) -> dict:
    return {system: run.configs()[0]["settings"] for system, run in gr_vs_dr_matched.runs(part, seed).items()}


@pytest.mark.parametrize("part", PARTS)
def test_all_systems_train_as_long_on_questions_alone(part):
    for system, settings in settings_of(part).items():
        training = settings["training"]
        assert training["steps"] == gr_vs_dr_matched.STEPS, system
        assert training["keep_best"] is None and training["dev_queries"] is None, system
        assert [kind for kind, rate in training["rates"].items() if rate] == ["query"]
        assert settings["pseudo_queries"]["kinds"] == {} and training["seed"] == 0
        other = settings_of(part, 1)[system]
        assert other["training"]["seed"] == 1 and {**other, "training": {**other["training"], "seed": 0}} == settings


def test_settings_are_the_same_at_both_sizes():
    assert settings_of(PARTS[0]) == settings_of(PARTS[1])
    for part, count in gr_vs_dr_matched.PARTS.items():
        for run in gr_vs_dr_matched.runs(part).values():
            assert run.every_document == part and f"{count // 1000}k_every_document" in run.folder.name


def test_systems_are_those_of_the_other_mode():
    """But for how they are trained, whether codebooks serve documents that join, and how many negatives MVDR draws."""
    chosen = {"GR-codebook": ("identifiers", "refits"), "MVDR": ("mining", "kept")}
    for system, run in gr_vs_dr_growth.runs().items():
        mine, others = settings_of(PARTS[0])[system], run.configs()[0]["settings"]
        different = {name for name in mine if mine[name] != others[name]} - {"training", "pseudo_queries"}
        assert different == ({chosen[system][0]} if system in chosen else set())
        for stage, setting in [chosen[system]] if system in chosen else []:
            assert {**others[stage], setting: mine[stage][setting]} == mine[stage]
    mine = settings_of(PARTS[0])
    assert mine["GR-codebook"]["identifiers"]["refits"] > 0
    assert mine["MVDR"]["mining"]["kept"] >= mine["MVDR"]["training"]["negatives"] == gr_vs_dr_matched.NEGATIVES


def test_names_of_rows():
    names = [row.name for row in gr_vs_dr_matched.rows()]
    expected = {f"growth: matched_training, {one}, {size}" for one in grown.SYSTEMS for size in ("10,000", "32,000")}
    assert expected < {*names} and len(names) == len({*names})
    assert not {*names} & {row.name for row in gr_vs_dr_growth.rows()}


@pytest.mark.parametrize("steps, all_seen", [(40, True), (9, False)])
def test_how_many_pairs_a_writer_saw(steps, all_seen):
    """Beside what stands in its batches, where every pair writes a token of its own."""
    lengths = np.random.default_rng(3).integers(3, 40, 60)
    questions = [{"inputs": [1] * int(n), "targets": [100 + place], "source": 0} for place, n in enumerate(lengths)]
    documents = [{"inputs": [1] * 5, "targets": [7], "source": 1}] * 20
    store = TokenStore.from_rows([*questions, *documents])
    training = Training(batch_size=2, steps=steps, warmup_steps=0, rates={"query": 1.0}, seed=5)
    batches = iter(
        make_batches(store, batch_size=2, rates={"query": 1.0}, seed=5, lengths={"inputs": 64, "targets": 32})
    )
    written = np.concatenate([next(batches)["decoder_target_tokens"].ravel() for _ in range(steps)])
    seen = written[written >= 100]
    said = gr_vs_dr_matched.seen_by_writer(store, training)
    assert said["passes"] == pytest.approx(len(seen) / 60)
    assert said["pairs seen"] == pytest.approx(len(set(seen.tolist())) / 60)
    assert (said["pairs seen"] == 1) == all_seen and 7 not in written


def test_a_slope_of_two_sizes_is_their_difference(monkeypatch):
    values = np.random.default_rng(0).uniform(size=(2, len(IDS)))
    made = {
        part: Evaluation(dict.fromkeys(MEASURES, float(row.mean())), IDS, dict.fromkeys(MEASURES, row))
        for part, row in zip(PARTS, values, strict=True)
    }
    monkeypatch.setattr(gr_vs_dr_matched, "evaluated", lambda system, part, seeds: made[part])
    said = gr_vs_dr_matched.slope("DR")
    expected = (values[1] - values[0]).mean() / np.log2(3.2)
    for measure in MEASURES:
        assert said[f"{measure} a doubling"] == pytest.approx(expected)
    assert said["RR@10 a doubling low"] < expected < said["RR@10 a doubling high"]
    assert (
        said["RR@10 a doubling of the ends, least of a seed"]
        == said["RR@10 a doubling of the ends, greatest of a seed"]
        == pytest.approx(expected)
    )
    assert gr_vs_dr_matched.above("GR-text", "DR")["RR@10 a doubling, above"] == 0
