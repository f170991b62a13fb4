"""GDR and DSI of two pretrained encoders: one reads queries, the other documents, each with a vocabulary of its own."""

import pathlib
import re

import numpy as np
import pytest
import tokenizers

import gr_jax
from gr_jax.stages.clusters import Clusters
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.negatives import Mining
from gr_jax.stages.networks import Network
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.stages.write_docids import Training
from gr_jax.systems.dsi_clusters import DSIClusters
from gr_jax.systems.gdr import GDR, ClusterSearch, Matching
from gr_jax.text import HuggingFaceVocabulary
from gr_jax.training.token_store import TokenStore
from tests import small_data
from tests.models import random_folders
from tests.small_dsi import COUNT
from tests.systems.gdr.small_run import training


def write_tokenizer(folder: pathlib.Path, special: list[str]) -> None:
    """A token for every word of the small corpus."""
    text = " ".join(f"{document['title']} {document['text']}" for document in small_data.documents(COUNT))
    words = [*special, *sorted(set(re.findall(r"\w+", text)))]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=special[-1]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.slow
@pytest.mark.parametrize("system", [GDR, DSIClusters])
def test_t5_reads_queries_and_bert_documents(beir, tmp_path, system):
    """As published: two pretrained encoders, a vocabulary for each, the first token's state, NCI's decoder head."""
    random_folders.write_t5(tmp_path / "t5", "t5_1_1")
    random_folders.write_bert(tmp_path / "bert")
    write_tokenizer(tmp_path / "t5", ["<pad>", "</s>", "<unk>"])
    write_tokenizer(tmp_path / "bert", ["[PAD]", "[CLS]", "[SEP]", "extra", "[UNK]"])
    told = {
        "encoders": Encoders(encoder=str(tmp_path / "bert"), pooling="cls", query_length=24, document_length=32),
        "network": Network(
            encoder=str(tmp_path / "t5"), width=32, heads=2, mlp_width=16, decoder_layers=1, pawa_layers=1
        ),
        "pseudo_queries": PseudoQueries(kinds={"title": 1}),
        "clusters": Clusters(budget=6, branching=3, tokens="position"),
        "encoder_training": None,
    }
    if system is GDR:
        told |= {"training": training(steps=2), "mining": Mining(shares={"cluster": 1.0}, kept=4)}
        told["matching"] = Matching(start="pretrained", similarity="tanh")
        told["search"] = ClusterSearch(beams=6, length_penalty=0.8, most_share=1.0)
    else:
        told |= {
            "training": Training(steps=2, warmup_steps=0, batch_size=8, dev_queries=None),
            "start": "pretrained",
        }
    searcher = system(**told).run(beir, tmp_path / "run", until="index", say=lambda line: None)
    words = searcher.retriever.vocabulary
    assert words.fingerprint == HuggingFaceVocabulary(tmp_path / "t5" / "tokenizer.json").fingerprint
    if system is GDR:
        its = searcher.retriever.document_encoder.vocabulary
        assert its.fingerprint == HuggingFaceVocabulary(tmp_path / "bert" / "tokenizer.json").fingerprint
        (pairs,) = (tmp_path / "shared").glob("pairs-*")
        queries, texts = (TokenStore.load(pairs / name) for name in ("queries", "documents"))
        dataset = gr_jax.corpus.read_beir(beir)
        np.testing.assert_array_equal(texts[0]["inputs"], its.encode(dataset.corpus.contents[0])[:32])
        first = dataset.split_queries("train").texts[0]
        assert any(row["inputs"].tolist() == list(words.encode(first)) for row in queries)
    assert searcher.retrieve(["where is the red cat"], 5).doc_index.min() >= 0
