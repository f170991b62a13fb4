"""Every command of README.md runs, in order, in a folder where a reader would stand."""

import pathlib
import re

import pytest

from tests.end_to_end import reader, readme
from tests.end_to_end.reader import CHECKOUT

BLOCKS = readme.parse((CHECKOUT / "README.md").read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return reader.checkout(tmp_path_factory.mktemp("readme") / "gr_jax")


@pytest.fixture(scope="module")
def prepared_run(folder) -> pathlib.Path:
    """Of blocks that need one, made when the first asks."""
    needed = any("$PREPARED_RUN" in command for block in BLOCKS for command in block.first)
    return reader.prepared(folder) if needed else folder


@pytest.mark.slow
@pytest.mark.parametrize("block", [pytest.param(block, id=f"line_{block.line}") for block in BLOCKS if not block.skip])
def test_block(block, folder, prepared_run):
    reader.run(block, "README.md", folder, prepared_run)


def test_most_blocks_run():
    """A skip is for what .ci/run does itself: its comment names the targets."""
    run = (CHECKOUT / ".ci" / "run").read_text()
    for block in BLOCKS:
        if block.skip:
            made = re.findall(r"make [\w-]+", block.skip)
            assert made and all(target in run for target in made), f"{block.code!r} is run neither here nor by .ci/run"
    assert sum(not block.skip for block in BLOCKS) >= 2


def test_the_folder_that_readme_calls_its_own_is_ignored_by_git():
    ignored = (CHECKOUT / ".gitignore").read_text().split()
    assert "runs/" in ignored and ".venv*/" in ignored


PAGE = """
```{rows} a_benchmark
:measures: R@100
a row
```
<!-- ci: append --short -->
```bash
gr-jax train \\
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
    assert first.code == "gr-jax train \\\n    --a=1 --short\necho done\n"
    assert (second.code, second.first, second.line) == ("train(steps=1)\n", ("mkdir x",), 17)


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
