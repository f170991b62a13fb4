"""Stages are functions: what is bound to stages is read, all else is the key."""

import dataclasses
import pathlib

import pytest

from gr_jax.errors import InputError
from gr_jax.stages.graph import Place, Stage, in_order, stage
from gr_jax.stages.settings import Settings, setting


@dataclasses.dataclass(frozen=True)
class Reading(Settings):
    length: int = setting(8, at_least=1)
    prefix: str = ""


@stage(shared=True)
def texts(place: Place, *, language: str = "en") -> None:
    """What is read."""


@stage(trains=True, version=3)
def model(place: Place, texts: pathlib.Path, extra: pathlib.Path | None, *, reading: Reading) -> None:
    """What learns."""


@stage()
def report(place: Place, models: list[pathlib.Path], *, title: str) -> None:
    """What says it."""


def test_parameters_bound_to_stages_are_inputs_and_all_others_are_the_key():
    read = texts()
    made = model(read, None, reading=Reading(length=4))
    assert isinstance(made, Stage) and dict(made.inputs) == {"texts": read}
    assert dict(made.settings) == {"extra": None, "reading": Reading(length=4)}
    assert made.config == {"extra": None, "reading": {"length": 4, "prefix": ""}}
    assert (made.name, made.kind, made.version, made.shared) == ("model", "model", 3, False)
    assert made.function.trains and not read.function.trains and read.shared
    assert list(model(read, texts(language="de"), reading=Reading()).inputs) == ["texts", "extra"]
    several = report([made, made.named("other")], title="t")
    assert [one.name for one in several.upstream()] == ["model", "other"]
    assert report([], title="t").config == {"models": [], "title": "t"}


def test_defaults_of_parameters_are_in_the_key():
    assert texts().key == texts(language="en").key != texts(language="de").key


@pytest.mark.parametrize("wrong", [{}, {"reading": Reading(), "readin": 1}])
def test_a_call_that_does_not_fit_the_function_is_named(wrong):
    with pytest.raises(TypeError, match="the stage model: "):
        model(texts(), None, **wrong)


def test_keys_depend_on_the_function_its_version_settings_and_inputs(monkeypatch):
    def other(place, texts, extra, *, reading):
        pass

    one = texts()
    keys = [
        model(one, None, reading=Reading()).key,
        model(one, one, reading=Reading()).key,
        model(None, one, reading=Reading()).key,
        model(texts(language="de"), None, reading=Reading()).key,
        model(one, None, reading=Reading(length=9)).key,
        model(one, None, reading=Reading(prefix="8")).key,
        stage(version=3)(other)(one, None, reading=Reading()).key,
        report([model(one, None, reading=Reading())], title="t").key,
        report([model(one, None, reading=Reading()), one], title="t").key,
        report([one, model(one, None, reading=Reading())], title="t").key,
    ]
    assert len(set(keys)) == len(keys) and all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    monkeypatch.setattr(model, "version", 4)
    assert model(one, None, reading=Reading()).key != keys[0]


def test_neither_its_name_nor_where_it_lives_is_part_of_a_key():
    made = model(texts(), None, reading=Reading())
    assert made.named("other").key == made.key == made.for_all().key
    assert made.named("other").name == "other" and made.for_all().shared


def test_each_stage_comes_after_what_it_reads_and_once():
    read = texts()
    first, second = model(read, None, reading=Reading()), model(read, read, reading=Reading(length=2)).named("second")
    last = report([first, second, model(read, None, reading=Reading())], title="t")
    assert [one.name for one in in_order(last)] == ["texts", "model", "second", "report"]
    assert [one.name for one in in_order(second, first)] == ["texts", "second", "model"]
    assert in_order(read) == [read]


def test_two_stages_of_one_name_are_refused():
    read = texts()
    one, other = model(read, None, reading=Reading()), model(read, None, reading=Reading(length=2))
    with pytest.raises(InputError, match=r"two stages have one name \(got 'model'\).*named"):
        in_order(report([one, other], title="t"))
    assert len(in_order(report([one, other.named("other")], title="t"))) == 4


def test_a_diamond_of_many_layers_is_keyed_in_no_time():
    """Keys are remembered: without that 40 layers of two would take a million million of them."""
    one = texts()
    for _ in range(40):
        one = model(one, one, reading=Reading())
    assert len(one.key) == 16
