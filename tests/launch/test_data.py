"""`launch.data`: what is listed and described, a build from a folder of raw files, and what is refused."""

import json

import pytest

from gr_jax import corpus
from gr_jax.corpus import nq320k
from tests.bad_input.conftest import launch as forked
from tests.bad_input.conftest import refused
from tests.corpus.nq_records import records


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "nq"
    folder.mkdir()
    for name, seed, dev in (("simplified-nq-train.jsonl", 0, False), ("nq-dev-all.jsonl", 1, True)):
        made = records(seed, 30, dev=dev)
        (folder / f"v1.0-{name}").write_text("".join(json.dumps(one) + "\n" for one in made))
    return folder


def test_what_can_be_built():
    assert "nq320k" in forked("data", "list").stdout
    said = forked("data", "describe", "nq320k").stdout
    for name, rules in nq320k.VARIANTS.items():
        assert f"--variant={name}" in said and rules.whose in said


def test_a_build_says_what_it_is(raw, tmp_path):
    done = forked("data", "build", "nq320k", f"--raw={raw}", f"--output={tmp_path / 'nq'}", "--variant=page",
                  "--processes=1")  # fmt: skip
    assert done.returncode == 0 and "This is page: collections by address" in done.stdout
    made = corpus.read_beir(tmp_path / "nq")
    assert f"{len(made.corpus):,} documents; train 30, test 30" in done.stdout
    assert len(made.split("train")) == 30


def test_what_is_refused(raw, tmp_path):
    refused(forked("data"), "describe NAME")
    refused(forked("data", "build", "nq321k"), "nq320k")
    refused(forked("data", "build", "nq320k"), "--raw")
    told = ("data", "build", "nq320k", f"--output={tmp_path / 'nq'}")
    refused(forked(*told, f"--raw={tmp_path / 'none'}"), "no such folder")
    refused(forked(*told, f"--raw={raw}", "--variant=url"), "nci_as_published")
    (tmp_path / "empty").mkdir()
    refused(forked(*told, f"--raw={tmp_path / 'empty'}"), "raw files of train are missing")
