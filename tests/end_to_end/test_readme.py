"""Every command of README.md runs, in order, in a folder where a reader would stand."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import small_data
from tests.end_to_end import readme

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = readme.parse((CHECKOUT / "README.md").read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """The checkout as a reader sees it, without what the checkout's owner has made in it."""
    folder = tmp_path_factory.mktemp("readme") / "gr_jax"
    folder.mkdir()
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True)
    names = {line.split("/")[0] for line in listed.stdout.splitlines()} or {p.name for p in CHECKOUT.iterdir()}
    for name in names - {"runs", ".git"}:
        (folder / name).symlink_to(CHECKOUT / name)
    small_data.write_beir(folder / "my_beir_folder")
    return folder


@pytest.fixture(scope="module")
def environment(folder) -> dict[str, str]:
    """A reader's: this interpreter is `python`, the devices are the machine's own."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PREPARED_RUN"] = str(_prepare(folder, environment))
    return environment


def _prepare(folder: pathlib.Path, environment: dict[str, str]) -> pathlib.Path:
    """An index that stands for the quickstart's, where a reader has that and a test does not."""
    code = """
from gr_jax import systems
systems.DSI(
    vectors=systems.Vectors(encoder="lsa"), training=systems.Training(steps=2, warmup_steps=0, batch_size=8),
    network=systems.Network(
        encoder="t5", vocabulary="byte", width=32, heads=2, mlp_width=64,
        encoder_layers=1, decoder_layers=1, outputs="random",
    ),
).run("my_beir_folder", "prepared/run", until="index", say=lambda line: None)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    return folder / "prepared" / "run"


@pytest.mark.parametrize("block", [pytest.param(block, id=f"line_{block.line}") for block in BLOCKS if not block.skip])
def test_block(block, folder, environment):
    commands = [["bash", "-euo", "pipefail", "-c", command] for command in block.first]
    commands.append([{"bash": "bash", "python": sys.executable}[block.language], "-c", block.code])
    if block.language == "bash":
        commands[-1][1:1] = ["-euo", "pipefail"]
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"README.md:{block.line}\n{command[-1]}\n{done.stdout}\n{done.stderr}", pytrace=False)
    assert done.stdout, f"README.md line {block.line} shows nothing"


def test_most_blocks_run():
    """A skip is for what .ci/run does itself."""
    run = (CHECKOUT / ".ci" / "run").read_text()
    for block in BLOCKS:
        if block.skip:
            made = [line for line in block.code.splitlines() if line.startswith("make ")]
            assert made and all(line in run for line in made), f"{block.code!r} is run neither here nor by .ci/run"
    assert sum(not block.skip for block in BLOCKS) >= 4


def test_the_folder_that_readme_calls_its_own_is_ignored_by_git():
    ignored = (CHECKOUT / ".gitignore").read_text().split()
    assert "runs/" in ignored and ".venv*/" in ignored


PAGE = """
<!-- ci: append --short -->
```bash
python -m launch.train \\
    --a=1
echo done
```
```json
{}
```
<!-- ci: first mkdir x -->
<!-- ci: replace steps=10 => steps=1 -->
```python
train(steps=10)
```
"""


def test_parse():
    first, second = readme.parse(PAGE)
    assert first.code == "python -m launch.train \\\n    --a=1 --short\necho done\n"
    assert (second.code, second.first, second.line) == ("train(steps=1)\n", ("mkdir x",), 13)


@pytest.mark.parametrize(
    "page",
    [
        "<!-- ci: skip why -->\n\n```bash\nls\n```\n",  # not on the line above
        "<!-- ci: skipp why -->\n```bash\nls\n```\n",
        "<!-- ci: append --x -->\n```bash\nls\n```\n",  # nothing to append to
        "<!-- ci: replace a => b -->\n```python\nc\n```\n",
        "<!-- ci: skip why -->\n```json\n{}\n```\n",
    ],
)
def test_directives_that_do_nothing_are_errors(page):
    with pytest.raises(ValueError):
        readme.parse(page)
