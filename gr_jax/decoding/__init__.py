"""Writing identifiers under a constraint: beam search and teacher-forced scoring."""

from gr_jax.decoding.backoff import Backoff as Backoff
from gr_jax.decoding.beam_search import Beams as Beams
from gr_jax.decoding.beam_search import beam_search as beam_search
from gr_jax.decoding.decoder import Decoder as Decoder
from gr_jax.decoding.history import History as History
from gr_jax.decoding.lookahead import Lookahead as Lookahead
from gr_jax.decoding.sampling import Samples as Samples
from gr_jax.decoding.sampling import sample as sample
from gr_jax.decoding.scores import LogitScores as LogitScores
from gr_jax.decoding.scores import TableScores as TableScores
from gr_jax.decoding.teacher_forcing import score_docids as score_docids
