"""The error that users meet names file, line, value and remedy, and survives every way to them."""

import concurrent.futures
import copy
import pathlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError


def test_the_whole_message():
    error = InputError("not a number", "Write a number.", file=pathlib.Path("a/b.tsv"), line=3, value="three")
    assert str(error) == "a/b.tsv:3: not a number (got 'three'). Write a number."


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "bad. Do better."),
        ({"file": "x"}, "x: bad. Do better."),
        ({"file": b"x"}, "x: bad. Do better."),
        ({"line": 4}, "bad. Do better."),  # a line of no file says nothing
        ({"value": 0}, "bad (got 0). Do better."),
        ({"value": ""}, "bad (got ''). Do better."),
    ],
)
def test_parts_that_do_not_apply_are_left_out(about, message):
    assert str(InputError("bad", "Do better.", **about)) == message


def test_long_values_are_cut():
    message = str(InputError("too long", "Shorten it.", value="x" * 10_000))
    assert len(message) < 200 and "…" in message and message.endswith("Shorten it.")


@given(file=st.text(), value=st.text() | st.binary(), line=st.integers(1))
def test_any_message_can_be_printed(file, value, line):
    message = str(InputError("bad", "Do better.", file=file, line=line, value=value))
    message.encode("utf-8")
    assert f":{line}: bad" in message


def test_surrogates_of_undecodable_file_names_are_escaped():
    assert str(InputError("bad", "Do better.", file="b\udcffd")) == "b\\udcffd: bad. Do better."


@pytest.mark.parametrize("value", ["three", None, 3.5, lambda: 0])
def test_pickling_and_copying_keep_everything_that_is_shown(value):
    error = InputError("bad", "Do better.", file=pathlib.Path("x"), line=2, value=value)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is InputError
        assert (str(other), other.problem, other.remedy, other.line) == (str(error), "bad", "Do better.", 2)
        assert str(pickle.loads(pickle.dumps(other))) == str(error)


def _fail():
    raise InputError("bad", "Do better.", file="x", value=[1])


def test_an_error_in_a_worker_process_arrives():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(InputError, match=r"x: bad \(got \[1\]\)\. Do better\."):
            pool.submit(_fail).result()


def test_it_is_a_value_error():
    """Callers that know nothing of this library can catch it by the usual name."""
    assert issubclass(InputError, ValueError)
