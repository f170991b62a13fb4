"""Progress: a live bar in a terminal, ten lines at most in a log, nothing where it is not wanted."""

import os
import pty
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax import progress

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _lines(capsys) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_log_gets_a_line_at_every_tenth(capsys):
    with progress.bar("Training", 1000) as bar:
        for step in range(1000):
            bar.advance(note=f"loss {step}")
    lines = _lines(capsys)
    assert [int(re.match(r"Training: (\d+)/1000, \d+s, \d+s left · loss \d+$", line)[1]) for line in lines] == list(
        range(100, 1001, 100)
    )


@given(counts=st.lists(st.integers(0, 50), max_size=60), total=st.integers(0, 500))
def test_a_log_never_gets_more_than_ten_lines(counts, total):
    """Whatever the total is said to be: zero, too small, too large."""
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as log, progress.bar("Reading", total) as bar:
        for count in counts:
            bar.advance(count)
    assert bar.done == sum(counts)
    lines = log.getvalue().splitlines()
    assert len(lines) <= 10
    assert all(re.fullmatch(r"Reading: \d+/\d+, \d+s, \d+s left", line) for line in lines)
    if total and sum(counts) >= total:
        assert lines


def test_disabled_it_counts_silently(capsys):
    with progress.bar("Reading", 3, enabled=False) as bar:
        bar.advance(2, note="half")
        bar.advance()
    assert (bar.done, bar.note, _lines(capsys)) == (3, "half", [])


def test_an_error_in_the_body_passes():
    with pytest.raises(KeyError), progress.bar("Reading", 3):
        raise KeyError


_SHOWN = """
    from gr_jax import progress
    with progress.bar("[bold]Outer", 3) as outer:
        for i in range(3):
            with progress.bar("Inner [/x]", 2) as inner:
                inner.advance(2, note="[1/2] [/red] loss")
            print(f"result {i}")
            outer.advance()
"""


@pytest.mark.parametrize("output_is_terminal", [True, False])
def test_in_a_terminal(output_is_terminal):
    """Nested bars, text that looks like markup, and results on standard output, which stay there."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SHOWN)],
        stdout=secondary if output_is_terminal else subprocess.PIPE,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": CHECKOUT},
        cwd=CHECKOUT,
    )
    os.close(secondary)
    shown = b""
    while True:
        try:
            piece = os.read(primary, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(primary)
    output = b"" if output_is_terminal else process.stdout.read()
    assert process.wait() == 0, shown.decode()
    assert b"[bold]Outer" in shown and b"Inner [/x]" in shown and b"[1/2] [/red] loss" in shown and b"3/3" in shown
    results = [b"result 0", b"result 1", b"result 2"]
    if output_is_terminal:
        assert all(result in shown for result in results)
    else:
        assert output.split(b"\n")[:3] == results and b"result" not in shown
