"""A batch of queries from tokens to what was written, as one compiled program."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import Constraint
from gr_jax.decoding import Beams, beam_search
from gr_jax.decoding.lookahead import Lookahead
from gr_jax.models import GenerativeModel
from gr_jax.retrievers.documents_of import LookUp, Searched


@functools.partial(jax.jit, static_argnames=("beams", "max_len", "normalize", "length_penalty", "merge", "history"))
def search(
    model: GenerativeModel,
    constraint: Constraint,
    look_up: LookUp,
    tokens: Int[Array, "rows length"],
    lengths: Int[Array, " rows"],
    allowed: Bool[Array, "rows documents"] | None,
    view: Any,
    *,
    beams: int,
    max_len: int,
    normalize: str,
    length_penalty: float,
    merge: str | None,
    history: bool,
    lookahead: Lookahead | None = None,
) -> tuple[Beams, Any]:
    """Reads the queries, searches under the constraint, and looks up what documents are made of.

    Args:
      model, constraint, look_up: pytrees: other parameters or another filter compile nothing again.
      tokens, lengths: of queries, or of their views.
      allowed: the documents that may be found; None: all.
      view: which automaton each row walks, where there are several.
      beams, max_len, normalize, length_penalty, merge: of the beam search.
      history: return the kept hypotheses too.
      lookahead: of the beam search; a pytree.
    """
    restricted = constraint if allowed is None else constraint.restrict(allowed)
    if lookahead is not None and allowed is not None:
        lookahead = lookahead.restrict(allowed)
    decoder, cache = model.decoder(), model.start(tokens, lengths, beams=beams, max_len=max_len)
    found = beam_search(
        decoder,
        cache,
        restricted,
        beams=beams,
        max_len=max_len,
        normalize=normalize,
        length_penalty=length_penalty,
        batch=tokens.shape[0],
        view=view,
        merge=merge,
        history=history or look_up.history,
        lookahead=lookahead,
    )
    looked_up = look_up(Searched(found, restricted, constraint, decoder, cache, tokens, lengths))
    return found if history else found._replace(history=None), looked_up
