"""The papers' data sets, built from the official raw files into folders that every system reads."""

from gr_jax.datasets.folder import About as About
from gr_jax.datasets.kinds import KINDS as KINDS
from gr_jax.datasets.kinds import Kind as Kind
from gr_jax.datasets.kinds import kind as kind
