"""What is retrieved: documents, queries, judgements and runs, and the readers of their formats."""

from gr_jax.corpus.beir import read_beir as read_beir
from gr_jax.corpus.columns import TextColumn as TextColumn
from gr_jax.corpus.dataset import Dataset as Dataset
from gr_jax.corpus.documents import Corpus as Corpus
from gr_jax.corpus.documents import Document as Document
from gr_jax.corpus.python_docs import python_docs as python_docs
from gr_jax.corpus.queries import Queries as Queries
from gr_jax.corpus.trec import Qrels as Qrels
from gr_jax.corpus.trec import Run as Run
