"""The page on adding a system: its example is a module that works as it stands."""

import importlib
import pathlib
import re
import sys

import gin
import pytest

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.stages.encoders import Encoders
from gr_jax.systems import configuration
from gr_jax.systems.base import System
from gr_jax.systems.run import run
from tests import small_data

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "how_to" / "add_a_system.md"
MOST_LINES = 120
SMALL = {"encoder": "t5", "vocabulary": "byte", "width": 16, "heads": 2, "mlp_width": 16, "layers": 1}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The page's example, imported as the file that it would be."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path_factory.mktemp("room")
    (folder / "prototypes.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("prototypes")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("prototypes", None)


def test_it_is_short():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= MOST_LINES


def test_it_retrieves_and_its_settings_are_its_key(example, beir, tmp_path):
    system = example.Prototypes(encoders=Encoders(**SMALL))
    said: list[str] = []
    searcher = system.run(beir, tmp_path / "run", say=said.append)
    assert len(searcher.search("where is the red cat", k=3)) == 3
    assert (tmp_path / "run" / "results" / "report.html").is_file()
    key = storage.read_folder(tmp_path / "run" / "index").made_from
    nearer = example.Prototypes(encoders=Encoders(**SMALL), pull=example.Pull(weight=0.25))
    nearer.run(beir, tmp_path / "run", say=said.append)
    assert storage.read_folder(tmp_path / "run" / "index").made_from != key
    assert any(line.startswith("✓ model: already made") for line in said)
    assert any("weight: 0.5 → 0.25" in line for line in said)


@pytest.mark.slow
def test_all_of_the_weight_on_queries_is_their_mean(example, beir, tmp_path):
    """Against the same by hand: with one query a document, its vector is that query's."""
    from gr_jax.stages.negatives import load_encoder
    from gr_jax.stages.pseudo_queries import PseudoQueries
    from gr_jax.stages.vectors import load_vectors

    system = example.Prototypes(
        encoders=Encoders(**SMALL),
        pseudo_queries=PseudoQueries(kinds={"title": 1}),
        pull=example.Pull(weight=1.0),
    )
    system.run(beir, tmp_path / "run", say=lambda line: None)
    (folder,) = (tmp_path / "shared").glob("pulled-*")
    titles = [row["title"] for row in small_data.documents(24)]
    expected = load_encoder(tmp_path / "run" / "model").encode(titles, "query")
    assert abs(load_vectors(folder) - expected).max() < 1e-5


def test_gin_finds_it(example, beir, tmp_path):
    gin.clear_config()
    try:
        gin.parse_config(f"""
            run.system = @Prototypes
            run.source = @BeirFolder()
            BeirFolder.folder = {str(beir)!r}
            run.model_dir = {str(tmp_path / "run")!r}
            pull/Pull.weight = 0.75
            Pull.most_queries = 2
        """)
        found = configuration.from_gin(example.Prototypes, configuration.registered(System))
        assert found.pull == example.Pull(weight=0.75, most_queries=2)
        gin.parse_config("Pull.weight = 7")
        gin.parse_config("pull/Pull.weight = 7")
        with pytest.raises(InputError, match="Pull.weight is too large"):
            run()
        assert not (tmp_path / "run").exists()
    finally:
        gin.clear_config()
