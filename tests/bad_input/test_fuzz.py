"""Whatever bytes a file has: the readers give what it says or an InputError that names it, and never anything else."""

import gzip
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gr_jax.corpus import Qrels, Queries, Run, read_beir
from gr_jax.errors import InputError
from tests import small_data
from tests.bad_input.conftest import content
from tests.bad_input.faults import sign

_junk = st.binary(max_size=8) | st.sampled_from(
    [b"\0", b"\n", b"\r", b"\t", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b"{", b"]", b"NaN", b"1e999", b"-"]
)
FEW = settings(max_examples=30)
_edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 20), _junk), min_size=1, max_size=4)


def _edit(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replaces at some places some bytes by some others."""
    for place, length, new in edits:
        place %= len(data) + 1
        data = data[:place] + new + data[place + length :]
    return data


def _read(reader, path: pathlib.Path) -> object:
    """What the reader gives, or None and a complaint that names the file."""
    try:
        return reader(path)
    except InputError as error:
        assert path.name in str(error) or path.parent.name in str(error), error
        str(error).encode("utf-8")
        return None


RUN = b"".join(b"q%d Q0 d%d %d %.3f tag\n" % (q, (q + r) % 7, r, 5.0 - r) for q in range(3) for r in range(3))
QRELS = b"query-id\tcorpus-id\tscore\n" + b"".join(b"q%d\td%d\t%d\n" % (i, i, i % 3) for i in range(5))


@FEW
@given(edits=_edits, compress=st.booleans())
def test_runs(edits, compress):
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root) / ("run.trec.gz" if compress else "run.trec")
        path.write_bytes(gzip.compress(_edit(RUN, edits), mtime=0) if compress else _edit(RUN, edits))
        run = _read(Run.load, path)
        if run is not None:
            assert all(np.isfinite(score) for hits in run.values() for _, score in hits)
            run.save(path)
            again = Run.load(path)
            assert {q: [d for d, _ in hits] for q, hits in again.items()} == {
                q: [d for d, _ in hits] for q, hits in run.items()
            }


@FEW
@given(edits=_edits)
def test_judgements(edits):
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root) / "test.tsv"
        path.write_bytes(_edit(QRELS, edits))
        qrels = _read(Qrels.load, path)
        if qrels is not None:
            qrels.save(path)
            assert {q: dict(grades) for q, grades in Qrels.load(path).items()} == {
                q: dict(grades) for q, grades in qrels.items()
            }


@FEW
@given(data=st.binary(max_size=200), name=st.sampled_from(["a.trec.gz", "a.trec"]))
def test_bytes_that_are_no_file_of_ours(data, name):
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root) / name
        path.write_bytes(data)
        for reader in (Run.load, Qrels.load, Queries.load):
            _read(reader, path)


@FEW
@given(file=st.sampled_from(["corpus.jsonl", "queries.jsonl", "qrels/train.tsv"]), edits=_edits)
def test_beir_folders(file, edits):
    with tempfile.TemporaryDirectory() as root:
        folder = small_data.write_beir(pathlib.Path(root) / "mine", count=5)
        (folder / file).write_bytes(_edit((folder / file).read_bytes(), edits))
        try:
            dataset = read_beir(folder)
        except InputError as error:
            assert str(folder) in str(error), error
            str(error).encode("utf-8")
            return
        for document in dataset.corpus:
            assert dataset.corpus[dataset.corpus.index_of(document.doc_id)] == document
        for qrels in dataset.qrels.values():
            for query_id, grades in qrels.items():
                dataset.queries.text(query_id)
                assert all(dataset.corpus.index_of(doc_id) >= 0 for doc_id in grades)


@FEW
@given(place=st.integers(0, 10_000), keep=st.booleans(), bit=st.integers(0, 7))
def test_compressed_folders(place, keep, bit):
    """A truncated .gz never passes; a flipped bit in one is noticed by gzip's own checksum, or was in its header."""
    with tempfile.TemporaryDirectory() as root:
        folder = small_data.write_beir(pathlib.Path(root) / "mine", count=5, queries=False, compressed=True)
        file = folder / "corpus.jsonl.gz"
        whole, data = read_beir(folder).corpus.fingerprint, bytearray(file.read_bytes())
        place %= len(data)
        if keep:
            data[place] ^= 1 << bit
        else:
            del data[place:]
        file.write_bytes(data)
        try:
            fingerprint = read_beir(folder).corpus.fingerprint
        except InputError as error:
            assert "corpus.jsonl.gz" in str(error)
        else:
            assert keep and fingerprint == whole


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> pathlib.Path:
    """An index of an untrained network."""
    from gr_jax import systems

    root = tmp_path_factory.mktemp("index")
    small_data.write_beir(root / "mine", count=12, queries=False)
    dsi = systems.DSI(
        vectors=systems.Vectors(encoder="lsa"),
        network=systems.Network(
            encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16,
            encoder_layers=1, decoder_layers=1, outputs="random",
        ),
        training=None,
    )  # fmt: skip
    dsi.run(root / "mine", root / "runs" / "mine", until="index", say=lambda line: None)
    return root / "runs" / "mine" / "index"


@settings(max_examples=25)
@given(data=st.data())
def test_any_flipped_bit_or_truncation_of_an_index(index, data):
    import gr_jax

    names = sorted(content(index))
    file = index / data.draw(st.sampled_from(names), label="file")
    original = file.read_bytes()
    if original and data.draw(st.booleans(), label="flip"):
        bit = data.draw(st.integers(0, 8 * len(original) - 1), label="bit")
        altered = bytearray(original)
        altered[bit // 8] ^= 1 << bit % 8
    else:
        altered = bytearray(original[: data.draw(st.integers(0, max(len(original) - 1, 0)), label="kept")])
    if altered == original:  # an empty file
        return
    file.write_bytes(altered)
    try:
        with pytest.raises(InputError, match=str(index)):
            gr_jax.load(index)
    finally:
        file.write_bytes(original)


@settings(max_examples=10, phases=[Phase.generate])
@given(data=st.data())
def test_an_index_that_was_altered_together_with_its_checksums(index, data):
    """A checksum protects from accidents, not from whoever can compute one. What such a folder holds is never run, and
    reading it ends in an InputError at worst: no traceback, no crash, no read past the end of a mapped file.
    """
    import gr_jax

    with tempfile.TemporaryDirectory() as root:
        copy = pathlib.Path(shutil.copytree(index, pathlib.Path(root) / "index"))
        name = data.draw(st.sampled_from([n for n in sorted(content(copy)) if (copy / n).stat().st_size]), label="file")
        (copy / name).write_bytes(_edit((copy / name).read_bytes(), data.draw(_edits, label="edits")))
        sign(copy, copy / name)
        try:
            for document in gr_jax.load(copy).corpus:
                str(document)
        except InputError:
            pass  # said
