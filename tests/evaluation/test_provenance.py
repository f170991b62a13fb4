"""Where and from what a number was made."""

import os
import subprocess

import pytest

from gr_jax.evaluation import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "code.py").write_text("one")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text("{}")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(provenance, "_CHECKOUT", tmp_path)
    return tmp_path, git("rev-parse", "HEAD").strip()


def test_commit_says_whether_the_checkout_was_changed(checkout):
    folder, head = checkout
    assert provenance.commit() == head[:12]
    (folder / "results" / "a.json").write_text("[]")
    assert provenance.commit() == head[:12] + "+changes"
    assert provenance.commit(ignore=["results"]) == head[:12]
    (folder / "code.py").write_text("two")
    assert provenance.commit(ignore=["results"]) == head[:12] + "+changes"


def test_commit_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_CHECKOUT", tmp_path)
    assert provenance.commit().startswith("release ")


def test_hardware_is_one_line():
    line = provenance.hardware_line()
    assert "\n" not in line
    assert f"{len(os.sched_getaffinity(0))} cores" in line
    assert line.endswith("no accelerator")  # tests run on the CPU


def test_lines_name_everything(checkout):
    about = provenance.Provenance(
        corpus="toy",
        split="test",
        duplicate_rule="kept",
        pseudo_queries=2.5,
        constraint="trie",
        normalizer="level",
        seeds=[],
    )
    assert dict(about.lines()) == {
        "corpus": "toy",
        "split": "test",
        "duplicate rule": "kept",
        "pseudo-queries per document": "2.5",
        "constraint": "trie",
        "normaliser": "level",
        "seeds": "none: nothing is random",
        "commit": checkout[1][:12],
        "hardware": provenance.hardware_line(),
    }
