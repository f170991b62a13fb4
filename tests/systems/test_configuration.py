"""Systems from gin: default < unscoped binding < binding in the scope named after the field; and back to gin."""

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gin
import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax import systems
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages.settings import Settings, fields_of, rules_of, setting, settings_class, types_of
from gr_jax.stages.sources import source_of
from gr_jax.systems import BeirFolder, PythonDocs, System, configuration
from tests.systems.configured import read_back


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class ToyTraining(Settings):
    steps: int = setting(10, at_least=1)
    seed: int = 0
    rate: float = 0.5


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class ToyLexical(Settings):
    k1: float = 0.9


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Toy(System):
    paper: ClassVar[str] = "Nobody 2020"

    name: str = "Toy"
    first: ToyTraining = setting(ToyTraining(steps=20))
    second: ToyTraining | None = setting(ToyTraining(steps=30, rate=0.1))
    third: ToyTraining | None = setting(None, when_on=ToyTraining(steps=40))
    fourth: ToyTraining | None = None
    lexical: ToyLexical = setting(ToyLexical())


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class OtherToy(System):
    paper: ClassVar[str] = "Nobody 2021"

    count: int
    fifth: ToyTraining = setting(ToyTraining())


def toy(text: str = "", system: type[System] = Toy) -> Any:
    gin.clear_config()
    try:
        gin.parse_config(text)
        return configuration.from_gin(system, [Toy, OtherToy])
    finally:
        gin.clear_config()


def test_without_bindings_it_is_the_default():
    assert toy() == Toy()


def test_an_unscoped_binding_is_of_every_field_that_is_on():
    made = toy("ToyTraining.seed = 3\nToyTraining.steps = 7")
    assert made.first == ToyTraining(steps=7, seed=3)
    assert made.second == ToyTraining(steps=7, seed=3, rate=0.1)  # what is not bound is the field's default
    assert made.third is None and made.fourth is None  # off stays off
    assert made.lexical == ToyLexical()


@pytest.mark.parametrize(
    "text",
    [
        "ToyTraining.steps = 7\nToyTraining.seed = 3\nsecond/ToyTraining.steps = 9",
        "second/ToyTraining.steps = 9\nToyTraining.seed = 3\nToyTraining.steps = 7",
    ],
)
def test_a_scope_is_over_an_unscoped_binding_in_whatever_order(text):
    made = toy(text)
    assert made.second == ToyTraining(steps=9, seed=3, rate=0.1) and made.first == ToyTraining(steps=7, seed=3)


def test_a_later_binding_is_over_an_earlier_one_of_the_same_scope():
    made = toy("second/ToyTraining.steps = 9\nsecond/ToyTraining.steps = 8\nToyTraining.steps = 7")
    assert made.second.steps == 8


def test_a_scoped_binding_turns_on_what_is_off():
    made = toy("third/ToyTraining.rate = 0.25\nToyTraining.seed = 3\nfourth/ToyTraining.seed = 4")
    assert made.third == ToyTraining(steps=40, rate=0.25, seed=3)  # over what it starts from
    assert made.fourth == ToyTraining(seed=4)


def test_an_explicit_none_is_off_whatever_is_bound_for_it():
    for text in (
        "Toy.second = None\nToyTraining.steps = 7\nsecond/ToyTraining.steps = 9",
        "second/ToyTraining.steps = 9\nToy.second = None",
    ):
        assert toy(text).second is None
    assert toy("third/ToyTraining.steps = 9\nToy.third = None").third is None
    with pytest.raises(InputError, match="Toy.first is not ToyTraining"):  # which is never off
        toy("Toy.first = None")


def test_what_is_no_settings_is_bound_of_the_system():
    assert toy('Toy.name = "mine"').name == "mine"
    with pytest.raises(InputError, match="Toy.name is not a text"):
        toy("Toy.name = 3")
    with pytest.raises(InputError, match="OtherToy.count has no value"):
        toy("", OtherToy)
    assert toy("OtherToy.count = 3", OtherToy).count == 3


def test_settings_given_whole_are_taken_as_they_are():
    assert toy("Toy.second = @ToyTraining()\nToyTraining.seed = 3").second == ToyTraining(seed=3)


def test_wrong_values_are_named():
    with pytest.raises(InputError, match=r"ToyTraining.steps is too small \(got 0\). Set it to 1 or more."):
        toy("ToyTraining.steps = 0")
    with pytest.raises(InputError, match="ToyTraining.rate is not a number"):
        toy('third/ToyTraining.rate = "fast"')


def test_a_scope_that_no_system_has_is_named():
    with pytest.raises(InputError) as caught:
        toy("secnd/ToyTraining.steps = 9")
    message = str(caught.value)
    assert "no system has a ToyTraining called secnd" in message and "'secnd/ToyTraining.steps'" in message
    assert "fifth, first, fourth, second, third" in message
    with pytest.raises(InputError, match="no system has a ToyTraining called lexical"):  # a field of another class
        toy("lexical/ToyTraining.steps = 9")


def test_a_scope_of_another_system_is_named_with_it():
    with pytest.raises(InputError, match="Toy has no ToyTraining called fifth, which is of OtherToy") as caught:
        toy("fifth/ToyTraining.steps = 9")
    assert "first, second, third, fourth" in str(caught.value)


def test_what_is_bound_of_another_system_is_no_mistake():
    """A file of budgets or ablations is of several."""
    assert toy("OtherToy.count = 3\nOtherToy.fifth = None") == Toy()


def test_what_is_bound_of_a_system_that_this_one_extends_is_refused():
    """Nothing would read it; nor does it follow to what extends this one."""
    for text in ("CGR.copying = True", "CGRContra.rebuilds = 0\nCGR.copying = True"):
        with pytest.raises(
            InputError, match=r"CGR.copying is bound.*CGRContra, which does not.*Bind CGRContra.copying"
        ):
            toy(text, systems.CGRContra)
    assert toy("CGRContra.copying = True", systems.CGRContra).copying
    assert not toy("CGRContra.copying = True", systems.CGR).copying


# ── And back


def test_what_is_off_is_written_as_off():
    made = Toy(second=None, third=ToyTraining(steps=3))
    text = configuration.to_gin(made)
    assert "Toy.second = None" in text.splitlines() and "third/ToyTraining.steps = 3" in text.splitlines()
    assert read_back(text) == made


@pytest.mark.parametrize(
    "source",
    [
        BeirFolder("a 'folder' with \"quotes\"\n\\ and %signs @all()", subset="ids.txt", transform="split_identifiers"),
        PythonDocs(("heapq", "bisect")),
        PythonDocs(),
    ],
)
def test_where_documents_come_from_is_written_too(source):
    text = configuration.to_gin(Toy(), source, "runs/'mine'", "shared #1")
    gin.clear_config()
    try:
        gin.parse_config(text)
        bound = gin.get_bindings(systems.run.run)
    finally:
        gin.clear_config()
    assert (bound["source"], bound["model_dir"], bound["shared_dir"]) == (source, "runs/'mine'", "shared #1")


def values(annotation: Any, rules: Any) -> st.SearchStrategy:
    """Values of a field's type, within its rules."""
    if rules.choices:
        return st.sampled_from(rules.choices)
    low = next((one for one in (rules.at_least, rules.above) if one is not None), None)
    high = next((one for one in (rules.at_most, rules.below) if one is not None), None)
    floats = st.floats(
        low, high, exclude_min=rules.above is not None, exclude_max=rules.below is not None,
        allow_nan=False, allow_infinity=False, width=64,
    )  # fmt: skip
    integers = st.integers(None if low is None else math.ceil(low), None if high is None else math.floor(high))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return integers
    if annotation is float:
        return floats
    if annotation is str:
        return st.text(max_size=8)
    if annotation in (None, type(None)):
        return st.none()
    if annotation is Any:
        return st.none() | st.booleans() | st.integers() | st.text(max_size=4)
    if origin is Mapping or origin is typing.get_origin(Mapping[str, int]):
        return st.dictionaries(st.text(max_size=4), values(arguments[1], rules), max_size=3)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return st.tuples(*(values(one, rules) for one in arguments))
    if origin in (tuple, typing.get_origin(Sequence[int])):
        return st.lists(values(arguments[0], rules), max_size=3)
    return st.one_of(*(values(one, rules) for one in arguments))


@st.composite
def changed(draw: Any, default: Settings) -> Settings:
    """Settings of which some fields are others; those whose fields do not go together are left as they were."""
    cls = type(default)
    for field in fields_of(cls):
        kind, rules = types_of(cls)[field.name], rules_of(cls, field.name)
        held, value = settings_class(kind), getattr(default, field.name)
        if held is not None:
            start = rules.when_on or held() if value is None else value
            optional = type(None) in typing.get_args(kind)
            choices = changed(start) | st.none() if optional else changed(start)
        else:
            choices = values(kind, rules)
        if draw(st.integers(0, 3)) == 0:
            try:
                default = dataclasses.replace(default, **{field.name: draw(choices)})
            except InputError:
                continue
    return default


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.__name__)
def test_any_system_is_written_and_read_back_equal(system):
    different = []

    @hypothesis.settings(max_examples=20, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(changed(system()))
    def check(made: System) -> None:
        different.append(made != system())
        assert read_back(configuration.to_gin(made)) == made

    check()
    assert sum(different) > 4


def test_a_source_that_gin_does_not_know_is_said_and_reads_back_without():
    class Mine:
        """What a user may write: identity and load alone."""

    text = configuration.to_gin(Toy(), Mine())
    assert "# run.source was a Mine, which gin does not know." in text
    assert read_back(text) == Toy()


def test_documents_in_memory_are_said():
    source = source_of(Dataset.from_texts(["Cats sleep.\nOwls see."], name="animals"))
    text = configuration.to_gin(Toy(), source)
    assert "# run.source was given in memory, which gin cannot name: animals: 1 documents" in text
    assert read_back(text) == Toy()
