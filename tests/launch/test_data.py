"""`gr-jax data`: what is listed and described, builds, samples and checks, and what is refused."""

import json

import pytest

from gr_jax import corpus
from gr_jax.corpus import nq320k
from gr_jax.datasets import KINDS, samples
from tests.bad_input.conftest import launch as forked
from tests.bad_input.conftest import refused
from tests.datasets.nq_records import records


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "nq"
    folder.mkdir()
    for name, seed, dev in (
        ("simplified_simplified-nq-train.jsonl", 0, False),
        ("simplified_nq-dev-all.jsonl", 1, True),
    ):
        made = records(seed, 30, dev=dev)
        (folder / f"v1.0-{name}").write_text("".join(json.dumps(one) + "\n" for one in made))
    return folder


def test_what_can_be_built():
    said = forked("data", "list").stdout
    assert all(name in said for name in KINDS) and "ir_datasets:ID" in said
    said = forked("data", "describe", "nq320k").stdout
    for name, rules in nq320k.VARIANTS.items():
        assert f"--variant={name}" in said and rules.whose in said


def test_a_build_says_what_it_is(raw, tmp_path):
    done = forked("data", "build", "nq320k", f"--raw={raw}", f"--output={tmp_path / 'nq'}", "--variant=page",
                  "--processes=1")  # fmt: skip
    assert done.returncode == 0 and "This is nq320k (page): collections by address" in done.stdout
    made = corpus.read_beir(tmp_path / "nq")
    assert f"{len(made.corpus):,} documents ({made.corpus.fingerprint}), questions: train 30, test 30" in done.stdout
    assert "questions of test: 30 (published: 7,830)" in done.stdout
    assert len(made.split("train")) == 30
    assert "as it was built" in forked("data", "verify", str(tmp_path / "nq")).stdout
    (tmp_path / "nq" / "queries.jsonl").unlink()
    refused(forked("data", "verify", str(tmp_path / "nq")), "Build it again")


def test_a_sample_and_its_raw_files(tmp_path):
    done = forked("data", "sample", "ms_marco", f"--output={tmp_path / 'sample'}")
    assert done.returncode == 0 and f"{2 * samples.TOWNS} documents" in done.stdout
    assert len(corpus.read_beir(tmp_path / "sample" / "built").split("dl19")) == samples.DEV
    told = forked("data", "verify", "ms_marco", f"--raw={tmp_path / 'sample' / 'raw'}")
    refused(told, "not as they were published")
    assert "2019qrels-pass.txt: DIFFERS" in told.stdout and "collection.tsv: no checksum" in told.stdout


def test_what_is_refused(raw, tmp_path):
    refused(forked("data"), "describe NAME")
    refused(forked("data", "build", "nq321k", f"--output={tmp_path / 'nq'}"), "nq320k")
    refused(forked("data", "build", "nq320k"), "--output")
    told = ("data", "build", "nq320k", f"--output={tmp_path / 'nq'}")
    refused(forked(*told), "--raw")
    refused(forked(*told, f"--raw={tmp_path / 'none'}"), "no such folder")
    refused(forked(*told, f"--raw={raw}", "--variant=url"), "nci_as_published")
    for words in (
        ("list", "--variant=nci"),
        ("describe", "kilt", "--raw=x"),
        ("verify", str(tmp_path), "--raw=x"),
        ("build", "ir_datasets:beir/nfcorpus/test", "--processes=1"),
        ("sample", "kilt", "--processes=1"),
    ):
        refused(forked("data", *words), f"{words[-1].partition('=')[0]} is not used by {words[0]}")
    (tmp_path / "empty").mkdir()
    refused(forked(*told, f"--raw={tmp_path / 'empty'}"), "the file of train: missing")
    refused(forked("data", "sample", "nq320k"), "--output")
    refused(forked("data", "sample", "nq320k", f"--output={tmp_path / 's'}", "--variant=url"), "nci_as_published")
    refused(forked("data", "sample", "kilt", f"--output={tmp_path / 's'}", "--variant=fever"), "Leave --variant out")
    (tmp_path / "mine" / "raw").mkdir(parents=True)
    (tmp_path / "mine" / "raw" / "nq-dev-00.jsonl.gz").write_text("real")
    refused(forked("data", "sample", "nq320k", f"--output={tmp_path / 'mine'}"), "something else")
    assert (tmp_path / "mine" / "raw" / "nq-dev-00.jsonl.gz").read_text() == "real"
    refused(forked("data", "verify", str(tmp_path)), "does not say which data set")
