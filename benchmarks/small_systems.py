"""Three small systems with random weights, of other networks and constraints each, and what they should find: every
identifier, written out and scored by teacher forcing."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import slow_ngram_scorer
from gr_jax import docids as docids_lib
from gr_jax import models, text
from gr_jax.constraints import FMIndex, TokenTextTrie, Trie
from gr_jax.corpus import Corpus
from gr_jax.docids import Docids, contextual_tokens, hierarchical_kmeans
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.models import pawa
from gr_jax.models.contextual_states import states_in_context
from gr_jax.retrievers import GenerativeRetriever
from gr_jax.retrievers.documents_of import BestDocid
from gr_jax.retrievers.ngram_scorer import NgramScoring
from gr_jax.retrievers.ngrams import NgramAggregation

SIZES: dict[str, Any] = {
    "emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_decoder_layers": 1, "mlp_dim": 24, "dropout_rate": 0.0,
}  # fmt: skip
PROMPT = "The paragraph that answers the question: "
NGRAM = 3  # tokens of the longest n-gram
VIEWS = ("title+body",)
SCORING = NgramScoring(most_occurrences=64)


def random_parameters(module: Any, seed: int) -> Any:
    """Larger than at initialisation, so that scores differ clearly."""
    tokens = np.ones((1, 4), np.int32)
    arguments = (tokens,) if isinstance(module, models.TextEncoder) else (tokens, tokens)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *arguments)["params"]
    random = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        center = 1.0 if "scale" in str(path[-1]) else 0.0
        return np.asarray(center + 0.3 * random.normal(size=leaf.shape), np.float32)

    return jax.tree_util.tree_map_with_path(draw, dict(shapes))


def ngrams(corpus: Corpus, *, seed: int = 0, scoring: NgramScoring = SCORING, **settings: Any) -> GenerativeRetriever:
    """N-grams of the documents' bytes under an FM-index, written by an encoder-decoder of one vocabulary."""
    vocabulary = text.ByteVocabulary()
    said = token_text(corpus, vocabulary, views=VIEWS)
    index = FMIndex.from_text(said, filters=True, sample_rate=4)
    module = models.EncoderDecoder(models.T5Config(vocab_size=vocabulary.size, num_encoder_layers=1, **SIZES))
    return GenerativeRetriever(
        models.GenerativeDecoder(module, random_parameters(module, seed)),
        index,
        vocabulary,
        documents_of=NgramAggregation(vocabulary, said, np.asarray(index.row_documents), scoring=scoring),
        **{"max_len": NGRAM, **settings},
    )


def contextual_titles(
    corpus: Corpus, vocabulary: text.Vocabulary, *, seed: int = 0, clusters: int = 2, **settings: Any
) -> GenerativeRetriever:
    """Titles, each token of which has an id for every sense that it has in the corpus, under a trie of token texts. A
    random encoder reads the documents; its clustered states are the decoder's table."""
    docids = docids_lib.titles(corpus.titles, vocabulary, max_length=5, untitled="untitled")
    encoder = models.TextEncoder(models.T5Config(vocab_size=vocabulary.size, num_encoder_layers=1, **SIZES))
    owner = docids.documents.tolist()
    rows = np.repeat(np.arange(len(docids)), np.diff(docids.offsets)).tolist()
    states = states_in_context(
        encoder,
        random_parameters(encoder, seed),
        [[token - docids.meta["shift"] for token in docids.sequence(row)] for row in rows],
        vocabulary.encode_batch([corpus.texts[document] for document in owner]),
        length=64,
    )
    ids = contextual_tokens(docids, states, clusters=clusters, seed=seed)
    module = models.EncoderDecoder(
        models.T5Config(vocab_size=vocabulary.size, num_encoder_layers=1, **SIZES),
        models.T5Config(vocab_size=ids.vocab_size, logits_via_embedding=True, **SIZES),
        share_embeddings=False,
    )
    params = random_parameters(module, seed + 1)
    table = params["decoder_token_embedder"]["embedding"]
    given = ids.text_of > 1  # EOS and what decoding starts from have no states, and keep vectors of their own
    params["decoder_token_embedder"]["embedding"] = np.where(given[:, None], ids.table, table)
    trie = TokenTextTrie.from_docids(docids, ids.text_of)
    return GenerativeRetriever(
        models.GenerativeDecoder(module, params, eos_id=trie.eos_id),
        trie,
        vocabulary,
        documents_of=BestDocid(docids, text_of=ids.text_of),
        **settings,
    )


def prompted(
    corpus: Corpus, vocabulary: text.Vocabulary, *, seed: int = 0, network: Any = models.DecoderOnly, **settings: Any
) -> GenerativeRetriever:
    """Docids of clusters under a trie, written by a decoder-only network behind a prompt that all queries share.

    Args:
      corpus, vocabulary: documents and text tokens; docids' tokens stand behind these, then the start token.
      seed: of everything random.
      network: the class of the network.
      settings: of the retriever.
    """
    vectors = np.random.default_rng(seed).normal(size=(len(corpus), 8)).astype(np.float32)
    docids = hierarchical_kmeans(vectors, branching=10, leaf_capacity=10, first_token=vocabulary.size)
    sizes = models.DecoderOnlyConfig(vocab_size=docids.vocab_size + 1, start_token=docids.vocab_size, **SIZES)
    module = network(sizes)
    prompt = vocabulary.encode(PROMPT)
    return GenerativeRetriever(
        models.PromptedDecoder(module, random_parameters(module, seed), prompt, docids.levels, docids.eos_id),
        Trie.from_docids(docids),
        vocabulary,
        documents_of=BestDocid(docids),
        **settings,
    )


Scored = list[dict[int, float]]  # of each query: document → score


def enumerate_ngrams(made: GenerativeRetriever, corpus: Corpus, queries: Sequence[str], allowed=None) -> Scored:
    """Every n-gram up to the retriever's length, scored, weighed and given to its documents by dictionaries."""
    del corpus
    assert isinstance(made.documents_of, NgramAggregation)
    scorer = made.documents_of.scorer
    said = scorer.text
    counts: Counter[tuple[int, ...]] = Counter()
    for segment in range(len(said.documents)):
        row = _segment(said, segment)
        for start in range(len(row)):
            for end in range(start + 1, min(len(row), start + int(made.max_len or 0)) + 1):
                counts[tuple(row[start:end])] += 1
    every = list(counts)
    if allowed is not None:
        own = {
            tuple(row[start : start + n])
            for segment, document in enumerate(said.documents.tolist())
            if allowed[document]
            for row in [_segment(said, segment)]
            for n in range(1, int(made.max_len or 0) + 1)
            for start in range(len(row) - n + 1)
        }
        every = [ngram for ngram in every if ngram in own]
    first: list[tuple[int, ...]] = [(token,) for token in range(said.vocab_size)]
    answers = []
    forced = zip(teacher_forced(made, queries, every), teacher_forced(made, queries, first), strict=True)
    for log_probs, singles in forced:
        answers.append(
            slow_ngram_scorer.scores(
                said,
                {(0, ngram): float(value) for ngram, value in zip(every, log_probs, strict=True)},
                {(0, ngram): counts[ngram] for ngram in every},
                dict(enumerate(singles.tolist())),
                scorer.settings,
                None if allowed is None else list(allowed),
            )
        )
    return answers


def enumerate_docids(made: GenerativeRetriever, corpus: Corpus, queries: Sequence[str], allowed=None) -> Scored:
    """Every way to write every docid, scored; a document has the best of its own."""
    del corpus
    ways, owner = every_way(made)
    answers = []
    for log_probs in teacher_forced(made, queries, ways):
        best: dict[int, float] = {}
        for score, row in zip(log_probs.tolist(), owner, strict=True):
            for document in made.docids.documents_of(row).tolist():
                if allowed is None or allowed[document]:
                    best[document] = max(score, best.get(document, -np.inf))
        answers.append(best)
    return answers


def every_way(made: GenerativeRetriever) -> tuple[list[tuple[int, ...]], list[int]]:
    """All token sequences that write a docid and its end, and the row of each."""
    docids: Docids = made.docids
    text_of = getattr(made.constraint, "text_of", np.arange(docids.vocab_size))
    ids = defaultdict(list)
    for token, written in enumerate(np.asarray(text_of).tolist()):
        ids[written].append(token)
    ways: list[tuple[int, ...]] = []
    owner: list[int] = []
    for row in range(len(docids)):
        own = list(itertools.product(*(ids[token] for token in docids.target(row))))
        ways += own
        owner += [row] * len(own)
    return ways, owner


def enumerate_all(made: GenerativeRetriever, corpus: Corpus, queries: Sequence[str], allowed=None) -> Scored:
    """What a retriever should find: `enumerate_ngrams` or `enumerate_docids`."""
    function = enumerate_ngrams if isinstance(made.documents_of, NgramAggregation) else enumerate_docids
    return function(made, corpus, queries, allowed)


def enough_beams(made: GenerativeRetriever, corpus: Corpus) -> int:
    """So many beams lose nothing: all n-grams of a length, or all ways to write docids."""
    if not isinstance(made.documents_of, NgramAggregation):
        return len(every_way(made)[0])
    tokens = token_text(corpus, made.vocabulary, views=VIEWS)
    segments = [_segment(tokens, segment) for segment in range(len(tokens.documents))]
    lengths = range(1, int(made.max_len or 0) + 1)
    return max(len({tuple(row[i : i + n]) for row in segments for i in range(len(row) - n + 1)}) for n in lengths)


def teacher_forced(made: GenerativeRetriever, queries: Sequence[str], sequences: list[tuple[int, ...]]):
    """Yields, for each query, the log-probabilities of sequences, float64, from the logits of whole rows."""
    model: Any = made.model
    lengths = np.array([len(sequence) for sequence in sequences])
    matrix = np.zeros((len(sequences), lengths.max()), np.int32)
    for row, sequence in zip(matrix, sequences, strict=True):
        row[: len(sequence)] = sequence
    read, read_lengths = text.encode_texts(made.vocabulary, list(queries), made.max_query_length)
    for query, length in zip(read, read_lengths.tolist(), strict=True):
        total = np.zeros(len(sequences))
        for start in range(0, len(matrix), 1024):
            part = matrix[start : start + 1024]
            padded = np.pad(part, ((0, 1024 - len(part)), (0, 0)))
            if isinstance(model.module, models.DecoderOnly):
                before = [*model.prompt, *query[:length].tolist(), model.start_token]
                whole = np.concatenate([np.tile(np.asarray(before, np.int32), (1024, 1)), padded], axis=1)
                log_probs = _log_probs(model.module, model.params, whole[:, :-1], None)[:, len(before) - 1 :]
            else:
                inputs = np.pad(padded, ((0, 0), (1, 0)))[:, :-1]
                log_probs = _log_probs(model.module, model.params, inputs, query[None, :length])
            chosen = np.take_along_axis(np.asarray(log_probs), padded[..., None], axis=2)[: len(part), :, 0]
            inside = np.arange(part.shape[1]) < lengths[start : start + 1024, None]
            total[start : start + 1024] = np.sum(np.where(inside, chosen, 0.0), axis=1, dtype=np.float64)
        yield total


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(module: Any, params: Any, tokens: Any, query: Any) -> jax.Array:
    if query is None:
        return jax.nn.log_softmax(module.apply({"params": params}, tokens))
    encoded = module.apply({"params": params}, query, method="encode")
    encoded = jax.numpy.broadcast_to(encoded, (len(tokens), *encoded.shape[1:]))
    asked = jax.numpy.broadcast_to(query, (len(tokens), query.shape[1]))
    features = module.apply({"params": params}, encoded, asked, tokens, method="decode_features")
    table = module.apply({"params": params}, method="output_table")
    return jax.nn.log_softmax(pawa.logits_of(features, table))


def _segment(tokens: TokenText, segment: int) -> list[int]:
    return tokens.tokens[tokens.offsets[segment] : tokens.offsets[segment + 1]].tolist()


def agreement(ranking: Any, expected: Scored, tolerance: float = 1e-3) -> float:
    """The share of ranks that hold what enumeration has there: the score, and a document with that score. Documents
    whose scores are equal but for rounding may stand either way.

    Args:
      ranking: of all documents that there are to find, or of the best k.
      expected: of each query, document → score.
      tolerance: of scores, which are sums of a few log-probabilities.
    """
    right = total = 0
    for found, scores, true in zip(ranking.doc_index, ranking.score, expected, strict=True):
        best = sorted(true.values(), reverse=True)[: len(found)]
        total += max(len(best), int(np.sum(found >= 0)))
        for document, score, wanted in zip(found.tolist(), scores.tolist(), best, strict=False):
            right += abs(score - wanted) <= tolerance and abs(true.get(document, np.inf) - score) <= tolerance
    return right / total
