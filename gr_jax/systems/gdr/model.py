"""Generative Dense Retrieval (Yuan et al. 2024): a decoder writes a document's cluster, its vector is matched inside.

The encoder reads a query once. Its states feed the decoder of cluster identifiers (CIDs) and, pooled, are the query's
vector, which is compared with document vectors as a bi-encoder's would be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gr_jax import losses
from gr_jax.errors import InputError
from gr_jax.models import text_encoder as encoders
from gr_jax.models.bi_encoder import SIMILARITIES, Tower
from gr_jax.models.generative import Batch, EncoderDecoderModel, GenerativeDecoder
from gr_jax.models.gradient_caching import encode_in_chunks

DOCUMENT = "document"


@dataclasses.dataclass(frozen=True)
class GDRModel(EncoderDecoderModel):
    """An `EncoderDecoder` that writes CIDs and gives query vectors, with T5X's model methods.

    The loss of a batch is `L_cid + λ · L_intra`:

    - L_cid, the mean over CID tokens of cross-entropy + `rdrop` · the symmetric KL of two dropout passes;
    - L_intra, the mean over queries, and over the passes, of
      `−s⁺/τ + log(α · Σ_{d⁺ and own negatives} exp(s/τ) + Σ_{other queries' documents} exp(s/τ))` with
      s = similarity of query and document. A query's own negatives come from its answer's cluster; those that do not,
      by a batch's `negative_in_cluster`, weigh 1. Further relevant documents are no negatives.

    Documents are learned in two stages. First without `document`: batches bring `document_vectors`, which stay as they
    are. Then with it: batches bring `document_tokens`, and that network, whose parameters are `document/…`, learns too.

    Batches are those of `gr_jax.training.GDRBatches`.

    Attributes:
      rdrop, label_smoothing, z_loss, normalize, levels, eos_id, …: of the CIDs; see `EncoderDecoderModel`.
      alpha: α.
      intra_weight: λ; 0 leaves the documents out.
      temperature: τ.
      similarity: "tanh" of the product; "cosine"; "dot", the product.
      pooling: of the query's states, "mean" over the tokens or "cls", the first one.
      document: the network of documents, or None.
      chunks: parts in which documents are encoded one after the other; see `encode_in_chunks`.

    Raises:
      InputError: a name or number makes no sense, or the parts do not fit together.
    """

    rdrop: float = 0.15
    alpha: float = 1.0
    intra_weight: float = 1.0
    temperature: float = 0.05
    similarity: str = "tanh"
    pooling: str = "mean"
    document: Tower | None = None
    chunks: int = 1

    def __post_init__(self):
        super().__post_init__()
        for name, known in (("similarity", SIMILARITIES), ("pooling", encoders.POOLINGS)):
            if getattr(self, name) not in known:
                raise InputError(f"unknown {name} of GDR", f"Use {', '.join(known)}.", value=getattr(self, name))
        for name in ("alpha", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is a number above 0", "Raise it.", value=getattr(self, name))
        if not 0 <= self.intra_weight < math.inf:
            raise InputError("intra_weight is a number of 0 or more", "Raise it.", value=self.intra_weight)
        if self.document is not None:
            self._check_width(self.document.dimension)

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """As of `EncoderDecoderModel`, with the parameters of `document` under that name."""
        variables = dict(super().get_initial_variables(rng, input_shapes, input_types))
        if self.document is not None:
            own = self.document.init(jax.random.fold_in(rng, 1), jnp.ones((1, 2), jnp.int32))
            for name, part in own.items():
                variables[name] = {**variables[name], DOCUMENT: part}
        return variables

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The loss of the class times the number of queries, which is `weight_sum`, and metrics as pairs (sum, weight).

        Args:
          params: of the network, and of the one of documents where there is one.
          batch: see the class; rows of document_index −1 fill it up.
          dropout_rng: None switches dropout off (and R-Drop with it).
        """
        rngs = self._pass_rngs(dropout_rng)
        passes = [self.features_and_query(params, batch, rng) for rng in rngs]
        cid = self._metrics(params, [features for features, _ in passes], batch)
        token_loss, tokens = cid.pop("loss")
        index = batch["document_index"]
        real = (index[:: losses.group_size(len(index), len(batch["encoder_input_tokens"]))] >= 0).astype(jnp.float32)
        weight = jnp.sum(real)
        loss = weight * token_loss / jnp.maximum(tokens, 1.0)
        metrics = {**cid, "loss/cid": (token_loss, tokens), "weight_sum": weight}
        if self.intra_weight:
            documents = self._documents(params, batch, dropout_rng)
            found = [self.match(query, documents, batch) for _, query in passes]
            intra = jnp.sum(sum(one.loss for one in found) * real) / len(found)
            loss = loss + self.intra_weight * intra
            metrics["loss/intra"] = (intra, weight)
            metrics["accuracy/match"] = (jnp.sum(found[0].correct * real), weight)
        metrics["loss"] = (loss, weight)
        return loss if self.loss_normalizing_factor is None else loss / self.loss_normalizing_factor, metrics

    def features_and_query(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, "B T f"], Float[Array, "B d"]]:
        """Decoder features, and query vectors (of unit length under "cosine"), from one pass through the encoder."""
        found: Any = self.module.apply(
            {"params": self.network_params(params)},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            pooling=self.pooling,
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            method="features_and_query",
        )
        features, query = found
        return features, self._vectors(query)

    def match(
        self, queries: Float[Array, "B d"], documents: Float[Array, "D d"], batch: Batch
    ) -> losses.ContrastiveLosses:
        """L_intra of every query, and whether its answer is nearer than all other documents of the batch.

        Args:
          queries, documents: vectors, of unit length under "cosine".
          batch: has document_index, and may have relevant_index and negative_in_cluster.
        """
        products = queries @ documents.T  # [B, D]
        scores = (jnp.tanh(products) if self.similarity == "tanh" else products) / self.temperature
        index, size = batch["document_index"], losses.group_size(len(documents), len(queries))
        inside = batch.get("negative_in_cluster", jnp.ones((len(queries), size - 1), bool))
        weights = losses.batch_weights(
            index,
            len(queries),
            relevant_index=batch.get("relevant_index"),
            positive_weight=self.alpha,
            negative_weights=jnp.where(inside, self.alpha, 1.0),
        )
        return losses.weighted_softmax(scores, losses.positive_columns(*scores.shape), weights)

    def decoder(self, params: Any) -> GenerativeDecoder:
        """The network as beam search takes it."""
        return super().decoder(self.network_params(params))

    @staticmethod
    def network_params(params: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `module`, without the documents'."""
        return {name: value for name, value in params.items() if name != DOCUMENT}

    def _documents(self, params: Any, batch: Batch, dropout_rng: Array | None) -> Float[Array, "D d"]:
        if self.document is None:
            if "document_vectors" not in batch:
                raise InputError(
                    "a batch without document_vectors, and no network to make them",
                    "Give GDRBatches the vectors, or GDRModel a document network.",
                )
            vectors = batch["document_vectors"].astype(jnp.float32)
            self._check_width(vectors.shape[1])
            return self._vectors(vectors)
        if "document_tokens" not in batch:
            raise InputError("a batch without document_tokens to encode", "Give GDRBatches no vectors.")
        tower = self.document

        def encode(tokens: Array, rng: Array | None) -> Array:
            found: Any = tower.apply(
                {"params": params[DOCUMENT]},
                tokens,
                deterministic=rng is None,
                rngs=None if rng is None else {"dropout": rng},
            )
            return found

        own = None if dropout_rng is None else jax.random.fold_in(dropout_rng, 2)
        return self._vectors(encode_in_chunks(encode, batch["document_tokens"], own, self.chunks))

    def _vectors(self, pooled: Float[Array, "rows d"]) -> Float[Array, "rows d"]:
        return encoders.unit(pooled) if self.similarity == "cosine" else pooled

    def _check_width(self, width: int) -> None:
        wanted = self.module.encoder_config.emb_dim
        if width != wanted:
            raise InputError(
                f"document vectors are {width} wide, query vectors {wanted}",
                "Use a document encoder as wide as the query encoder.",
                value=width,
            )
