import numpy as np
import peer_outputs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.models import SentenceEncoder, TextEncoder
from gr_jax.models.sentence_encoder import plan_batches
from tests import compiled


class Words:
    """Token id = length of the word + 1, between two special tokens."""

    prefix, suffix = (2,), (3,)

    def encode_batch(self, texts):
        return [[len(word) + 4 for word in text.split()] for text in texts]


@pytest.fixture(scope="module")
def tiny(tiny_folders):
    config, params = huggingface.load_bert(tiny_folders["bert"])
    return SentenceEncoder(TextEncoder(config), params, Words())


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join("x" * rng.integers(1, 20) for _ in range(rng.integers(0, 40))) for _ in range(count)]


@given(
    st.lists(st.integers(1, 200), max_size=80),
    st.integers(1, 20),
    st.sampled_from((16, 64, 100, 200)),
)
def test_plan_covers_every_text_once(lengths, batch_size, max_length):
    lengths = [min(length, max_length) for length in lengths]
    batches = plan_batches(lengths, batch_size, max_length)
    assert sorted(i for chosen, _, _ in batches for i in chosen) == list(range(len(lengths)))
    for chosen, length, height in batches:
        assert 0 < len(chosen) <= height
        assert max(lengths[i] for i in chosen) <= length <= max_length
        assert height * length <= 64 * batch_size or height == 1


def test_vectors_do_not_depend_on_company_or_order(tiny):
    all_texts = texts(30)
    together = tiny.encode(all_texts, batch_size=4, max_length=48)
    np.testing.assert_allclose(tiny.encode(all_texts[::-1], batch_size=7, max_length=48)[::-1], together, atol=1e-5)
    np.testing.assert_allclose(tiny.encode(all_texts[3:4], max_length=48)[0], together[3], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


def test_pooling_and_normalisation_from_the_definition(tiny):
    text = "a bb ccc"
    tokens = np.array([[2, 5, 6, 7, 3]], np.int32)
    states = np.asarray(compiled.run(tiny.module, tiny.params, tokens))[0]
    for pooling, vector in (("mean", states.mean(0)), ("cls", states[0])):
        encoder = SentenceEncoder(tiny.module, tiny.params, Words(), pooling=pooling, normalize=False)
        np.testing.assert_allclose(encoder.encode([text], max_length=16)[0], vector, atol=1e-5)


def test_long_texts_keep_their_suffix(tiny):
    long, cut = "a " * 50, "a " * 14
    np.testing.assert_allclose(tiny.encode([long], max_length=16), tiny.encode([cut], max_length=16), atol=1e-6)


def test_no_texts(tiny):
    assert tiny.encode([], max_length=16).shape == (0, 32)


def test_bad_settings_are_refused(tiny):
    for max_length in (1, 65):  # the position table has 64 rows
        with pytest.raises(InputError, match="between 2 and 64"):
            tiny.encode(["a"], max_length=max_length)
    with pytest.raises(InputError, match="at least one row"):
        tiny.encode(["a"], batch_size=0, max_length=16)
    with pytest.raises(InputError, match="pooling"):
        SentenceEncoder(tiny.module, tiny.params, Words(), pooling="max")


@pytest.mark.parametrize("source", ("stored", pytest.param("live", marks=pytest.mark.slow)))
def test_minilm_embeds_as_its_reference(source, minilm_folder):
    pytest.importorskip("tokenizers")
    if source == "live":
        pytest.importorskip("sentence_transformers")
        expected = peer_outputs.minilm(minilm_folder)["vectors"]
    else:
        golden = peer_outputs.pathlib.Path(peer_outputs.__file__).parent / "golden" / "minilm.npz"
        expected = np.load(golden, allow_pickle=False)["vectors"]
    found = huggingface.load_sentence_encoder(minilm_folder).encode(peer_outputs.SENTENCES, max_length=128)
    cosines = np.sum(found * expected, axis=1)
    assert cosines.min() >= 0.9999
    assert np.abs(found - expected).max() < 1e-4
