"""How good an answer is: measures, significance, and reports that say what their numbers rest on."""

from gr_jax.evaluation.kilt import evaluate_kilt as evaluate_kilt
from gr_jax.evaluation.kilt import evidence_recall as evidence_recall
from gr_jax.evaluation.kilt import r_precision as r_precision
from gr_jax.evaluation.metrics import DEFAULT_MEASURES as DEFAULT_MEASURES
from gr_jax.evaluation.metrics import Evaluation as Evaluation
from gr_jax.evaluation.metrics import evaluate as evaluate
from gr_jax.evaluation.metrics import parse_measures as parse_measures
from gr_jax.evaluation.pages import qrels_of_pages as qrels_of_pages
from gr_jax.evaluation.pages import run_of_pages as run_of_pages
from gr_jax.evaluation.provenance import Provenance as Provenance
from gr_jax.evaluation.provenance import commit as commit
from gr_jax.evaluation.provenance import hardware_line as hardware_line
from gr_jax.evaluation.report import Report as Report
from gr_jax.evaluation.report import print_table as print_table
from gr_jax.evaluation.results import read_training_metrics as read_training_metrics
from gr_jax.evaluation.significance import Comparison as Comparison
from gr_jax.evaluation.significance import bootstrap_interval as bootstrap_interval
from gr_jax.evaluation.significance import compare as compare
from gr_jax.evaluation.significance import paired_t_test as paired_t_test
from gr_jax.evaluation.significance import randomisation_test as randomisation_test
