"""Kinds of examples that are registered: by name, whatever the order in which processes register them."""

import pytest

from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary
from gr_jax.training import example_sources, make_batches
from gr_jax.training.features import Pair, PairFeatures, pair_from_json, pair_to_json
from gr_jax.training.token_store import TokenStore, write_token_store

FEATURES = PairFeatures(ByteVocabulary(), max_input_length=24, eos_id=1)
PAIRS = [Pair(f"text {n}", [2 + n % 7], ("query", "title", "triple", "document")[n % 4]) for n in range(80)]


@pytest.fixture
def registered(monkeypatch):
    """Another process, which registers these kinds in this order."""

    def anew(*names):
        monkeypatch.setattr(example_sources, "_names", list(example_sources.BUILT_IN))
        return [example_sources.register_source(name) for name in names]

    return anew


def test_a_kind_is_registered_once(registered):
    assert registered("title", "triple", "title") == [3, 4, 3]
    assert example_sources.source_names() == ("query", "document", "pseudo", "title", "triple")
    assert example_sources.source_number("triple") == 4
    pair = pair_from_json(pair_to_json(PAIRS[1]))
    assert pair == PAIRS[1] and int(FEATURES.row(pair)["source"]) == 3


def test_what_is_no_kind(registered):
    registered()
    for name in ("", "a b", "1st"):
        with pytest.raises(InputError, match="letters, digits and _"):
            example_sources.register_source(name)
    with pytest.raises(InputError, match="or register it"):
        FEATURES.row(PAIRS[1])
    with pytest.raises(InputError, match="128 sources"):
        registered(*(f"kind{number}" for number in range(126)))


def test_the_order_of_registration_changes_nothing(registered, tmp_path):
    """Neither what a store says, nor which rows are drawn; nor does a process that registers nothing beforehand."""
    kinds = [pair.source for pair in PAIRS]
    drawn = []
    for number, names in enumerate((("title", "triple"), ("triple", "title"), ("other", "triple", "title"), ())):
        registered(*names)
        if not number:
            write_token_store(tmp_path / "store", PAIRS, FEATURES)
        store = TokenStore.load(tmp_path / "store")
        assert [example_sources.source_names()[one] for one in store.source.tolist()] == kinds
        assert store.counts() == {"query": 20, "document": 20, "title": 20, "triple": 20}
        batches = iter(
            make_batches(
                store, batch_size=8, lengths={"inputs": 32, "targets": 4}, pack=False,
                rates={"title": 2.0, "triple": 1.0, "query": 1.0}, seed=3,
            )
        )  # fmt: skip
        drawn.append([next(batches)["encoder_input_tokens"].tolist() for _ in range(6)])
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]
