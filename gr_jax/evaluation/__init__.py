"""How good an answer is: measures, significance, and reports that say what their numbers rest on."""

from gr_jax.evaluation.metrics import DEFAULT_MEASURES as DEFAULT_MEASURES
from gr_jax.evaluation.metrics import Evaluation as Evaluation
from gr_jax.evaluation.metrics import evaluate as evaluate
from gr_jax.evaluation.metrics import parse_measures as parse_measures
