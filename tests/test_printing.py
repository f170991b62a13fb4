"""Text of data sets leaves a terminal and a page as they are."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.printing import escaped, printable

NASTY = "a\x1b[31mb\rc\x07\u202ed\x9bm\u2028e"


def _controls(text: str) -> set[str]:
    """What Unicode calls control characters, and those that change the direction of writing."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Zl", "Zp", "Cs")} | {*text} & {
        *"\u202a\u202e\u2066"
    }


def test_nothing_of_it_reaches_the_terminal():
    assert printable(NASTY) == "a�[31mb c��d�m e"
    assert escaped("b\x1b[2J") == "b\\x1b[2J"


@given(st.text())
def test_no_control_character_is_left(text):
    assert not _controls(printable(text)) and not _controls(escaped(text))
    printable(text).encode("utf-8")


@given(st.text(st.characters(categories=("L", "M", "N", "P", "S"))))
def test_all_else_is_kept(text):
    assert printable(text) == escaped(text) == text


def test_errors_say_what_is_there():
    assert str(InputError("bad\n", "Do better.", file="x\x1b[2Jy")) == "x\\x1b[2Jy: bad\\n. Do better."
