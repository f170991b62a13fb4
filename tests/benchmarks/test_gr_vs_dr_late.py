"""Late interaction beside one vector a text: trained alike, of the same seeds; and a reference that is not trained."""

import pytest

from benchmarks import gr_vs_dr, gr_vs_dr_dense, gr_vs_dr_late

ARMS = {"negatives": gr_vs_dr_dense.negatives, "hard": gr_vs_dr_dense.hard, "dimension": gr_vs_dr_dense.widths}
# What a training does not read where documents' states stay and its last parameters are taken.
UNREAD = {"document_length": None, "dev_documents": None}


@pytest.mark.parametrize("study", ARMS)
def test_both_are_trained_alike(study):
    dense, late = ARMS[study](), ARMS[study](gr_vs_dr_late.arm)
    assert list(dense) == list(late)
    folders = [run.folder for runs in late.values() for run in runs]
    assert len({*folders}) == len(folders)
    for point, runs in dense.items():
        assert len(runs) == len(late[point])
        for one, other in zip(runs, late[point], strict=True):
            mine, theirs = (run.configs()[0]["settings"] for run in (other, one))
            assert mine["frozen_documents"] and mine["interaction"]["projection"] == "layers"
            for name in ("training", "mining", "pseudo_queries"):
                ours, others = ({**settings[name], **UNREAD} for settings in (mine, theirs))
                assert ours == others, (point, name)
            assert mine["interaction"]["dimension"] == theirs["encoders"]["projection"]


def test_end_points_and_what_is_tested_have_three_seeds():
    rows = {row.name: row for of_study in ARMS for row in gr_vs_dr.STUDIES[of_study]()}
    for side in ("DR", "MVDR"):
        for point in ("negatives: {}, K = 1", "negatives: {}, K = all", "hard: {}, share 0", "hard: {}, share 1"):
            assert tuple(rows[point.format(side)].seeds) == (0, 1, 2)
        for width in (8, 32, 128, 384):
            assert tuple(rows[f"dimension: {side}, r = {width}"].seeds) == (0, 1, 2)
        assert tuple(rows[f"dimension: {side}, r = 64"].seeds) == (0,)
        for wide, narrow in ((32, 8), (128, 32)):
            tested = rows[f"dimension: {side}, r = {wide} above r = {narrow}"]
            assert tested.at_most == {"p RR@10": 0.05} and len(tested.runs) == 6


def test_the_reference_is_not_trained():
    for width in gr_vs_dr_dense.WIDTHS:
        run = gr_vs_dr_late.principal(width)
        settings = run.configs()[0]["settings"]
        assert settings["training"] is None and settings["encoders"]["document_length"] == 256
        assert settings["interaction"]["projection"] == "principal" and settings["interaction"]["dimension"] == width


def test_pictures_have_a_line_a_side(monkeypatch, tmp_path):
    monkeypatch.setattr(gr_vs_dr_dense.harness, "RESULTS", tmp_path)
    rows = [f"dimension: {side}, r = {r}" for side in ("DR", "MVDR", "PCA", "MVDR by PCA") for r in (8, 32)]
    gr_vs_dr_dense.draw("dimension", {name: {"RR@10": place / 10} for place, name in enumerate(rows)})
    picture = (tmp_path / "gr_vs_dr_dimension.svg").read_text()
    assert all(side in picture for side in ("DR", "MVDR", "PCA", "MVDR by PCA"))
