"""The command `gr-jax`: what it lists, starts and refuses."""

import subprocess
import sys

import gr_jax
from tests.bad_input.conftest import CHECKOUT, refused
from tests.bad_input.conftest import launch as forked


def test_every_program_is_listed_without_importing_it():
    code = "import sys; from launch import main; sys.argv[1:] = []; main.main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert not {"absl", "gin", "jax", "numpy"} & set(done.stderr.split())
    listed = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    files = [file for file in (CHECKOUT / "launch").rglob("*.py") if "program.run(main" in file.read_text("utf-8")]
    assert listed.keys() == {file.parent.name if file.stem == "__main__" else file.stem for file in files}
    assert listed["update"].endswith("  Adds documents to an index and removes some, without training.")
    for asked in ("--help", "-h", "help"):
        assert forked("main", asked).stdout == done.stdout


def test_it_starts_the_program_of_that_name():
    for name in ("search", "cluster"):
        assert forked("main", name, "--help").stdout == forked(name, "--help").stdout
    assert forked("main", "--version").stdout == f"gr_jax {gr_jax.__version__}\n"


def test_a_name_that_is_none():
    refused(forked("main", "serch", "--index=x"), "got 'serch'", "Did you mean search?")
    refused(forked("main", "xyz"), "Name one of: recipe, train")


def test_a_printed_command_works_where_gr_jax_is_not_on_path(monkeypatch, tmp_path):
    from launch import program

    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.command("search").endswith("python -m launch.search")
    (tmp_path / "gr-jax").touch(mode=0o755)
    assert program.command("search") == "gr-jax search"
