"""The library alone: `pip install .` without extras trains from a token store, decodes and searches.

Run by the interpreter of such an environment, from elsewhere than the checkout: `make core`.
"""

import importlib.util
import json
import pathlib
import sys
import tempfile

EXTRAS = ("tensorflow", "seqio", "torch", "transformers", "tokenizers", "sentencepiece", "bm25s", "ir_measures")
COLOURS = ["red", "green", "blue", "black", "white", "yellow", "brown", "grey"]
ANIMALS = ["cat", "dog", "horse", "owl"]


def main() -> None:
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"this environment is not the core alone, it has {', '.join(present)}"

    import gr_jax

    checkout = pathlib.Path(__file__).resolve().parents[2]
    package = pathlib.Path(gr_jax.__file__).resolve()
    assert package.parent.parent != checkout, f"{package} is the checkout, not what was installed"

    import numpy as np

    from gr_jax import corpus, docids, models, text, training
    from gr_jax.retrievers import index
    from gr_jax.retrievers.generative import GenerativeRetriever

    documents = [
        corpus.Document(f"{colour}-{animal}", f"{colour} {animal}", f"The {animal} of this page is {colour}.")
        for colour in COLOURS
        for animal in ANIMALS
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        columns = corpus.Corpus.from_documents(documents)
        vectors = np.random.default_rng(0).normal(size=(len(documents), 8)).astype(np.float32)
        ids = docids.hierarchical_kmeans(vectors, branching=4, leaf_capacity=4)
        vocabulary = text.ByteVocabulary()

        names: dict[int, list[int]] = {}
        for row in range(len(ids)):
            for document in ids.documents[ids.offsets[row] : ids.offsets[row + 1]]:
                names[int(document)] = ids.tokens[row, : ids.lengths[row]].tolist()
        pairs = [training.Pair(document.title, names[i], "query") for i, document in enumerate(documents)]
        features = training.PairFeatures(vocabulary, max_input_length=16, eos_id=ids.eos_id)
        store = training.write_token_store(folder / "tokens", pairs, features)

        size = models.T5Config(
            vocab_size=max(vocabulary.size, ids.vocab_size),
            emb_dim=48, num_heads=4, head_dim=12, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=96,
            mlp_activations=("gelu", "linear"), dropout_rate=0.0,
        )  # fmt: skip
        module = models.EncoderDecoder(encoder_config=size, decoder_config=size, share_embeddings=False)
        model = models.EncoderDecoderModel(module=module, levels=ids.levels, eos_id=ids.eos_id)
        batches = training.make_batches(store, batch_size=32, lengths={"inputs": 16, "targets": ids.max_steps})
        steps = training.TrainSettings(steps=150, optimizer=training.adamw(3e-3))
        trained = training.train(training.Task(model, batches), steps, model_dir=folder / "training")

        retriever = GenerativeRetriever.over_docids(
            module, trained.params, vocabulary, ids, beams=8, max_query_length=16
        )
        index.save(folder / "index", retriever, columns)
        searcher = gr_jax.load(folder / "index")
        found = [searcher.search(document.title, k=1)[0].doc_id for document in documents]
        right = sum(hit == document.doc_id for hit, document in zip(found, documents, strict=True))
        assert right >= 0.9 * len(documents), f"{right} of {len(documents)} training queries find their document"

        # The system as well, up to its index: what comes after it needs the extra `eval`.
        from gr_jax import systems

        beir = folder / "mine"
        beir.mkdir()
        lines = (json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) for d in documents)
        (beir / "corpus.jsonl").write_text("\n".join(lines))
        network = systems.Network(
            encoder="t5", vocabulary="byte", width=32, heads=2, mlp_width=64, encoder_layers=1, decoder_layers=1,
            outputs="random",
        )  # fmt: skip
        dsi = systems.DSI(
            vectors=systems.Vectors(encoder="lsa"), network=network,
            training=systems.Training(steps=5, warmup_steps=0, batch_size=8),
        )  # fmt: skip
        searcher = dsi.run(beir, folder / "runs" / "mine", until="index", say=lambda line: None)
        assert searcher is not None and len(searcher.search("the red horse", k=3)) == 3

    loaded = [name for name in EXTRAS if name in sys.modules]
    assert not loaded, loaded
    print(f"core alone: {right} of {len(documents)} training queries find their document; a system runs to its index")


if __name__ == "__main__":
    main()
