import collections

import numpy as np
import pytest

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary
from gr_jax.training.features import Pair, PairFeatures, pair_to_json
from gr_jax.training.packing import arrange
from gr_jax.training.token_store import TokenStore, write_token_store


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Imported by the worker alone that runs these tests: TensorFlow takes ten seconds and most of a GiB."""
    global seqio, tasks
    seqio = pytest.importorskip("seqio")
    import tasks


FEATURES = PairFeatures(ByteVocabulary(), max_input_length=24, eos_id=1)
PAIRS = [
    Pair("how do I shard an array over a mesh?", [5, 17, 9], "query"),
    Pair("Ünïcode, 漢字 and \u2028 a line separator", [5, 18], "document"),
    Pair("", [4], "pseudo"),
    *(Pair(f"text {n} " * (n % 7), [2 + n, 3 + n % 5], ("query", "document", "pseudo")[n % 3]) for n in range(60)),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(pair_to_json(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    return path


@pytest.fixture
def name(request):
    """A name that is registered anew, and forgotten afterwards."""
    before = [(registry, set(registry.names())) for registry in (seqio.TaskRegistry, seqio.MixtureRegistry)]
    yield "test_pairs"
    for registry, known in before:
        for added in set(registry.names()) - known:
            registry.remove(added)


def test_tokens_are_byte_for_byte_those_without_seqio(tmp_path, file, name):
    tasks.add_pairs_task(name, {"train": file}, FEATURES, target_size=100)
    tasks.write_token_store_from_task(tmp_path / "with", name)
    write_token_store(tmp_path / "without", PAIRS, FEATURES)
    files = [storage.read_folder(tmp_path / folder, "tokens").files for folder in ("with", "without")]
    assert files[0] == files[1] and len(files[0]) == 5
    assert TokenStore.load(tmp_path / "with").fingerprint == TokenStore.load(tmp_path / "without").fingerprint


def test_seqio_s_converter_makes_the_arrays_that_we_make(file, name):
    """T5X's features, padded by seqio, against ours."""
    task = tasks.add_pairs_task(name, {"train": file}, FEATURES, target_size=100)
    lengths = {"inputs": 32, "targets": 6}
    dataset = task.get_dataset(lengths, split="train", shuffle=False)
    converted = list(seqio.EncDecFeatureConverter(pack=False)(dataset, lengths).as_numpy_iterator())
    rows = FEATURES.rows(PAIRS)
    ours = arrange([[(row["inputs"], row["targets"])] for row in rows], 32, 6, packed=False)
    for number, theirs in enumerate(converted):
        assert theirs.keys() == ours.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key][number], value, err_msg=key)


def test_seqio_s_packing_lays_out_rows_as_we_do(file, name):
    task = tasks.add_pairs_task(name, {"train": file}, FEATURES, target_size=100)
    lengths = {"inputs": 64, "targets": 16}
    dataset = task.get_dataset(lengths, split="train", shuffle=False)
    packed = list(seqio.EncDecFeatureConverter(pack=True)(dataset, lengths).as_numpy_iterator())
    pairs = collections.deque((row["inputs"], row["targets"]) for row in FEATURES.rows(PAIRS))
    assert sum(int(row["decoder_segment_ids"].max()) for row in packed) == len(pairs)
    for theirs in packed:
        # The same examples in the same row, laid out by us.
        chosen = [pairs.popleft() for _ in range(int(theirs["decoder_segment_ids"].max()))]
        ours = arrange([chosen], 64, 16, packed=True)
        assert theirs.keys() == ours.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key][0], value, err_msg=key)


def test_sources_are_told_apart(file, name):
    task = tasks.add_pairs_task(name, {"train": file}, FEATURES, target_size=100, sources=["document"])
    texts = [example["inputs"].tolist() for example in task.get_dataset(None, shuffle=False).as_numpy_iterator()]
    expected = [
        row["inputs"].tolist()
        for row, pair in zip(FEATURES.rows(PAIRS), PAIRS, strict=True)
        if pair.source == "document"
    ]
    assert texts == expected
    with pytest.raises(InputError, match="unknown source"):
        tasks.add_pairs_task(f"{name}_wrong", {"train": file}, FEATURES, target_size=100, sources=["guess"])


def test_mixtures_follow_their_rates(file, name):
    mixture = tasks.add_pairs_mixture(
        name, {"train": file}, FEATURES, target_size=100, rates={"query": 1, "document": 1, "pseudo": 3}
    )
    dataset = mixture.get_dataset({"inputs": 32, "targets": 6}, shuffle=False, seed=0).take(2000)
    source_of = {
        (*row["inputs"], 0, *row["targets"]): pair.source for row, pair in zip(FEATURES.rows(PAIRS), PAIRS, strict=True)
    }
    seen = collections.Counter(
        source_of[(*example["inputs"], 0, *example["targets"])] for example in dataset.as_numpy_iterator()
    )
    shares = [seen[source] / 2000 for source in ("query", "document", "pseudo")]
    np.testing.assert_allclose(shares, [0.2, 0.2, 0.6], atol=0.05)
    with pytest.raises(InputError, match="has no end"):
        tasks.write_token_store_from_task("unused", name)
