"""What every test stands on: eight simulated CPU devices, a compilation cache, the `slow` marker, real data.

Everything that JAX reads once is set here, before the first test module imports it. Processes that tests start inherit
the same environment. The shapes in signatures are checked, too (`tests/shapes.py`).
"""

import contextlib
import ctypes
import importlib.metadata
import os
import pathlib

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent

# Compiling is most of what small models cost. These two make it cheaper. XLA ends a process that gives it a flag it
# does not know: they are given to versions that are known to have them.
_CHEAPER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_max_isa=AVX2")
_FLAGS = ["--xla_force_host_platform_device_count=8"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _FLAGS += _CHEAPER
os.environ["JAX_PLATFORMS"] = "cpu"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
# And it is done once for all workers and the processes that tests start. Some of those are started without XLA_FLAGS,
# which could say the first of these as well.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CHECKOUT / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import jax
import pytest

from tests import shapes

shapes.install()  # before anything of gr_jax is imported

import gr_jax.opening  # noqa: F401  every kind of index can be opened
from tests import small_data, small_dsi

# What a process may hold before it forgets the programs that it compiled, so that it stays below 4 GiB.
MOST_BYTES = 2.5 * 2**30

# The first example of a property pays for compilation, so examples have no deadline. The same examples run every time,
# so that a failure is one of the change under test; GR_JAX_EXPLORE=1 draws new ones.
hypothesis.settings.register_profile("same", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("new" if os.environ.get("GR_JAX_EXPLORE") else "same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes minutes; runs only with --slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data sets: GR_JAX_SHARED_DATA, or shared/data beside the checkout; skips where absent."""
    folder = pathlib.Path(os.environ.get("GR_JAX_SHARED_DATA") or CHECKOUT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; name its folder in GR_JAX_SHARED_DATA")
    return folder


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> pathlib.Path:
    """A folder of 24 documents, with queries of every split."""
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "mine", count=small_dsi.COUNT)


@pytest.fixture(scope="session")
def memorised(tmp_path_factory) -> small_dsi.Memorised:
    """64 documents, which a DSI has learnt by heart."""
    return small_dsi.memorise(tmp_path_factory)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """Between files, once there are many: hardly any file uses another's."""
    yield
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_BYTES:
        jax.clear_caches()
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
