"""CGR (Lee et al. 2022, arXiv 2210.02068): titles written in a vocabulary of contextualized token embeddings."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages import pretrained
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.examples import examples
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.networks import Network
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.training import check_stays
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.stages.write_docids import Training
from gr_jax.systems.base import System
from gr_jax.systems.cgr import results, writer
from gr_jax.systems.cgr.aligning import Aligning as Aligning
from gr_jax.systems.cgr.aligning import aligned
from gr_jax.systems.cgr.vocabulary import Contextual as Contextual
from gr_jax.systems.cgr.vocabulary import vocabulary_of_titles
from gr_jax.systems.cgr.writer import TitleDecoding as TitleDecoding

DEV_BEAMS = 10  # of the looks at dev
# The network retrieves before it is trained, and titles that no question of train asks for are easily unlearned. On dev
# of nq_boolq_dev RR@10 rises a little in 50 steps at this rate, and falls from the start at twice as much and more.
TRAINING = Training(
    steps=48, learning_rate=5e-5, warmup_steps=10, evaluate_every=24,
    rates={"query": 1.0, "document": 0.0, "pseudo": 0.0}, normalize="vocabulary",
)  # fmt: skip


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class CGR(System):
    """CGR, Base: a title is written token by token, each token in the sense that it has in its document (§3.1, §3.2).

    An encoder reads every title with its document behind it. Its states of one token are clustered, and every cluster
    is an id of the decoder, which reads and writes these vectors and never changes them. Under a trie of titles each
    token may be written in all its senses (A.1). A document is found by its title alone, so that a new page needs no
    training: tokens that no title had get what the network's own encoder makes of them.

    It deviates from the paper in the networks: MiniLM reads titles and questions, where the paper has T5-large for
    both, and the decoder starts from the question's vector. Vectors of ids have unit length, and an untrained logit
    is a cosine divided by `Network.temperature`; the paper has centroids as they are. Scores are sums of logits, where
    the paper has log-probabilities, and the beam looks ahead (`decoding.Lookahead`). Titles are cut at
    `Contextual.title_tokens`, and documents whose titles are equal then are one page.

    Attributes:
      contextual: the decoder's vocabulary.
      network: reads questions and writes titles.
      pseudo_queries: queries made from documents, that it is trained on beside those of people where `Training.rates`
        says so.
      training: None leaves it as it starts.
      copying: tokens that stand in the question are likelier, and where the last one stands before them all the more.
        The paper has none of that: a pretrained T5 copies.
      decoding: how the index answers.
      rebuilds: how often, evenly over the steps of `training`, the encoder that is trained makes the decoder's
        vocabulary again (Async).
      aligning: a training before, after which its encoder makes the decoder's vocabulary and `training` goes on from
        its network (Contra). None: there is none.
      lexical: BM25, beside which it is measured.
    """

    paper: ClassVar[str] = "Lee et al. 2022, arXiv 2210.02068"

    name: str = "CGR"
    contextual: Contextual = setting(Contextual())
    network: Network = setting(Network(outputs="random"))
    pseudo_queries: PseudoQueries = setting(PseudoQueries(kinds={}))
    training: Training | None = setting(TRAINING)
    copying: bool = False
    decoding: TitleDecoding = setting(TitleDecoding())
    rebuilds: int = setting(0, at_least=0, neutral=0)
    aligning: Aligning | None = setting(None, neutral=None)
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        name = type(self).__name__
        if self.network.outputs != "random":
            raise InputError(
                "the decoder's vectors are those of its vocabulary",
                'Leave Network.outputs at "random".',
                value=self.network.outputs,
            )
        if self.network.vocabulary != "pretrained" and self.contextual.encoder in pretrained.NAMES:
            raise InputError(
                "titles are cut into tokens that their encoder does not know",
                'Set Network.vocabulary to "pretrained", and Network.encoder to Contextual.encoder.',
                value=self.network.vocabulary,
            )
        if self.training is not None and self.training.normalize != "vocabulary":
            raise InputError(
                "titles have no levels of tokens to normalise over",
                'Set Training.normalize to "vocabulary".',
                value=self.training.normalize,
            )
        if self.training is not None and self.contextual.title_tokens >= self.training.row_targets:
            raise InputError(
                f"titles of {self.contextual.title_tokens} tokens and their end do not fit Training.row_targets",
                f"Set Training.row_targets to {self.contextual.title_tokens + 1} or more.",
                value=self.training.row_targets,
            )
        if self.training is not None:
            length = self.training.max_input_length
            pretrained.check_positions("Training.max_input_length", length, self.network.encoder)
        if (self.rebuilds or self.aligning is not None) and self.contextual.vanilla:
            raise InputError(
                "the vocabulary has a vector for each token, which no encoder makes again",
                f"Set Contextual.vanilla to False, or {name}.rebuilds to 0 and {name}.aligning to None.",
            )
        if (self.rebuilds or self.aligning is not None) and self.training is None:
            raise InputError(
                "the vocabulary is to be made by an encoder that is trained, and nothing is trained",
                f"Give {name}.training, or set {name}.rebuilds to 0 and {name}.aligning to None.",
            )
        if self.training is not None and self.training.steps % (self.rebuilds + 1):
            raise InputError(
                f"{self.rebuilds} times at which the vocabulary is made again do not divide the steps evenly",
                f"Set Training.steps to a multiple of {self.rebuilds + 1}, or {name}.rebuilds to another number.",
                value=self.training.steps,
            )
        if self.rebuilds:
            check_stays(self.training, "the vocabulary is made again", f"set {name}.rebuilds to 0")
        if self.training is not None and self.training.rates.get("pseudo") and not self.pseudo_queries.kinds:
            raise InputError(
                "pseudo-queries are to be learned from, and none are made",
                'Set PseudoQueries.kinds, or Training.rates["pseudo"] to 0.',
                value=self.training.rates["pseudo"],
            )

    def check_data(self, dataset: Dataset) -> None:
        """See `System.check_data`."""
        if self.aligning is not None and not len(dataset.qrels.get("train", ())):
            raise InputError(
                f"{self.name} first learns which tokens the titles of training questions have, and there are none",
                f"Add queries.jsonl and qrels/train.tsv, or leave it out: {type(self).__name__}.aligning=None.",
            )
        rates = {} if self.training is None else self.training.rates
        if rates.get("query") and not len(dataset.qrels.get("train", ())):
            raise InputError(
                f"{self.name} learns from training questions, and there are none",
                "Add queries.jsonl and qrels/train.tsv, train on pseudo-queries alone (PseudoQueries.kinds and "
                f"Training.rates), or leave it untrained: {type(self).__name__}.training=None.",
            )

    def stages(self, corpus: Stage) -> Stage:
        words, terms = vocabulary_of(corpus, self.network), bm25(corpus, settings=self.lexical)
        tokens = vocabulary_of_titles(corpus, words, self.contextual)
        if self.training is None:
            start = writer.untrained(corpus, tokens, words, network=self.network, seed=0, copying=self.copying)
            model = start.named(writer.model.name)
        else:
            tokens, model = self._trained(corpus, words, tokens, self.training)
        index = writer.index(corpus, tokens, words, model, decoding=self.decoding)
        both = hybrid(corpus, terms, index, name=self.name)
        seeds = set() if self.contextual.vanilla else {self.contextual.seed}
        learned_from = "none: not trained"
        if self.training is not None:
            seeds.add(self.training.seed)
            learned_from = self.pseudo_queries.summary() if self.training.rates.get("pseudo") else "none"
        about = {"pseudo_queries": learned_from, "normalizer": self.decoding.normalize, "seeds": sorted(seeds)}
        return results.title_results(corpus, terms, tokens, model, index, both, name=self.name, provenance=about).named(
            "results"
        )

    def _trained(self, corpus: Stage, words: Stage, tokens: Stage, settings: Training) -> tuple[Stage, Stage]:
        """The decoder's vocabulary that the network starts with, and the network."""
        made = pseudo_queries(corpus, settings=self.pseudo_queries)
        # What is for answering alone trains nothing again.
        dev = TitleDecoding(
            beams=DEV_BEAMS, normalize=self.decoding.normalize, length_penalty=self.decoding.length_penalty,
            max_query_length=settings.max_input_length, lookahead=self.decoding.lookahead,
        )  # fmt: skip

        def rows(tokens: Stage) -> Stage:
            return examples(
                corpus, tokens, made, words,
                sentences=0, max_input_length=settings.max_input_length, document_words=settings.document_words,
            )  # fmt: skip

        how = {"network": self.network, "settings": settings, "decoding": dev, "copying": self.copying}
        if self.aligning is None and not self.rebuilds:
            return tokens, writer.model(corpus, tokens, words, rows(tokens), **how)
        first = None
        if self.aligning is not None:
            first = aligned(
                corpus, tokens, words, rows(tokens).named("examples_to_align"),
                network=self.network, settings=self.aligning, row_length=settings.row_length,
                row_targets=settings.row_targets, decoding=dev,
            )  # fmt: skip
            tokens = vocabulary_of_titles(corpus, words, self.contextual, first)
        model = writer.evolving_model(
            corpus, tokens, words, rows(tokens), first, rebuilds=self.rebuilds, vectors=self.contextual, **how
        )
        return tokens, model.named(writer.model.name)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class CGRAsync(CGR):
    """CGR, Async (§3.3): every so many steps the encoder that is trained reads the titles again, and the decoder's
    vectors, and which of its tokens' senses each title has, become what it makes of them. The number of rebuilds is a
    setting; the paper's is one every 20 epochs."""

    name: str = "CGR, Async"
    rebuilds: int = setting(3, at_least=0, neutral=0)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class CGRContra(CGR):
    """CGR, Contra (§3.3): before it learns to write titles, the network learns which tokens they have, in whatever
    order, against a vocabulary that stays as it is; then its encoder makes that vocabulary anew."""

    name: str = "CGR, Contra"
    aligning: Aligning | None = setting(Aligning(), neutral=None)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class GENREStar(CGR):
    """GENRE*, as CGR's authors call GENRE in their own settings (§4.2): all is as in CGR, but the decoder's vocabulary
    is the encoder's table of tokens, where every token has one vector, whichever document it stands in."""

    name: str = "GENRE*"
    contextual: Contextual = setting(Contextual(vanilla=True))


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class GENRE(GENREStar):
    """GENRE (De Cao et al. 2021, arXiv 2010.00904): a title is written token by token under a trie of all titles
    (§3.2), with label smoothing (§3.1).

    It deviates from the paper as `CGR` does; and what BART knows of copying, and of which words belong together, is an
    addition to logits that is counted on training questions: see `CGR.copying`.
    """

    paper: ClassVar[str] = "De Cao et al. 2021, arXiv 2010.00904"

    name: str = "GENRE"
    training: Training | None = setting(dataclasses.replace(TRAINING, label_smoothing=0.1))
    copying: bool = True
    # Words that are copied are worth much in any title, and a short title need not be held against its being short.
    decoding: TitleDecoding = setting(TitleDecoding(length_penalty=1.0))
