"""Settings: types and ranges are checked when they are made, and a key says what they mean."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.stages import keys
from gr_jax.stages.settings import Settings, check_heads, check_shares, rules_of, setting, settings_class, types_of


@dataclasses.dataclass(frozen=True)
class Base(Settings):
    steps: int = setting(10, at_least=1)
    rate: float = setting(0.5, above=0, below=2)
    share: float = setting(0.0, at_least=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class All(Base):
    steps: int = 20
    name: str = "n"
    kind: str = setting("a", choices=("a", "b"))
    on: bool = True
    patience: int | None = setting(None, at_least=1)
    widths: int | Sequence[int] = setting(4, at_least=2)
    mesh: tuple[int, int] = setting((0, 1), at_least=0)
    rates: Mapping[str, float] = setting({"x": 1.0}, at_least=0)
    multipliers: Mapping[str, float] | None = None
    extra: Mapping[str, Any] = setting({})
    late: float | None = setting(None, above=0, neutral=None)
    file: str | None = setting(None, identity=lambda file: None if file is None else keys.content(file))

    def check(self) -> None:
        if self.on and self.kind == "b":
            raise InputError("b is not on", "Set on = False.")


def test_values_are_kept_as_their_types_say():
    made = All(
        rate=1, widths=[4, 8], mesh=[2, 4], rates={"x": 1}, steps=np.int64(3), multipliers={"a": np.float32(0.5)}
    )
    assert made == All(rate=1.0, widths=(4, 8), mesh=(2, 4), rates={"x": 1.0}, steps=3, multipliers={"a": 0.5})
    assert [type(one) for one in (made.rate, made.widths, made.mesh, made.steps)] == [float, tuple, tuple, int]
    assert type(made.multipliers["a"]) is float and All(file=pathlib.Path("a/b")).file == "a/b"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("steps", 2.5, "not a whole number"),
        ("steps", "2", "not a whole number"),
        ("steps", True, "not a whole number"),
        ("steps", None, "not a whole number"),
        ("steps", 0, "too small (got 0). Set it to 1 or more"),
        ("rate", "1", "not a number"),
        ("rate", math.nan, "not a number"),
        ("rate", math.inf, "not a number"),
        ("rate", True, "not a number"),
        ("rate", 0, "not above 0"),
        ("rate", 2, "not below 2"),
        ("share", 1.01, "too large (got 1.01). Set it to 1 or less"),
        ("share", -0.1, "too small"),
        ("name", 3, "not a text"),
        ("name", None, "not a text"),
        ("kind", "c", "not a known choice (got 'c'). Choose one of: a, b"),
        ("on", 1, "not True or False"),
        ("patience", 0, "too small"),
        ("patience", "many", "not a whole number or None"),
        ("widths", 1, "too small"),
        ("widths", (4, 1), "too small"),
        ("widths", (4, 2.5), "not a whole number or a list of whole numbers"),
        ("widths", "44", "not a whole number or a list"),
        ("mesh", (1,), "not 2 values"),
        ("mesh", (1, 2, 3), "not 2 values"),
        ("mesh", (1, -1), "too small"),
        ("rates", {"x": "1"}, "not a dictionary from names to numbers"),
        ("rates", {1: 1.0}, "not a dictionary"),
        ("rates", {"x": -1.0}, "too small"),
        ("rates", [("x", 1.0)], "not a dictionary"),
        ("rates", None, "not a dictionary"),
        ("multipliers", {"x": None}, "not a dictionary from names to numbers or None"),
        ("late", 0.0, "not above 0"),
    ],
)
def test_what_is_of_another_type_or_out_of_range_is_named_with_what_would_be_right(name, value, said):
    with pytest.raises(InputError) as caught:
        All(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"All.{name} is ") and said in message


def test_what_does_not_go_together_is_checked_when_each_is_right():
    assert All(kind="b", on=False).kind == "b"
    with pytest.raises(InputError, match="b is not on"):
        All(kind="b")
    with pytest.raises(InputError, match="All.kind is not a known choice"):  # before what goes together
        All(kind="c", on=True)


def test_a_class_that_extends_another_keeps_its_rules_and_may_change_defaults():
    assert All().steps == 20 and Base().steps == 10
    assert rules_of(All, "steps").at_least == 1
    with pytest.raises(InputError, match="All.steps is too small"):
        All(steps=0)


def test_settings_are_frozen_and_replaced():
    made = All()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.steps = 3
    assert dataclasses.replace(made, steps=3).steps == 3
    with pytest.raises(InputError):
        dataclasses.replace(made, steps=0)
    assert All().rates is not All().rates  # a mapping is each instance's own


def test_which_class_of_settings_a_field_holds():
    @dataclasses.dataclass(frozen=True)
    class System(Settings):
        one: All = setting(All())
        other: Base | None = None
        plain: int = 0

    hints = {name: settings_class(kind) for name, kind in types_of(All).items()}
    assert not any(hints.values())
    assert settings_class(All) is All and settings_class(Base | None) is Base and settings_class(int) is None


# ── Keys


def key(**changes: Any) -> str:
    return keys.digest(keys.canonical(All(**changes)))


def test_every_field_is_in_the_key():
    changed = {
        "steps": 21, "rate": 0.6, "share": 0.1, "name": "m", "patience": 1, "widths": 5, "mesh": (1, 1),
        "rates": {"x": 2.0}, "multipliers": {}, "extra": {"a": 1}, "late": 1.0, "file": __file__,
    }  # fmt: skip
    assert {*changed, "kind", "on"} == {field.name for field in dataclasses.fields(All)}
    found = [key(), key(on=False), key(on=False, kind="b"), *(key(**{name: value}) for name, value in changed.items())]
    assert len(set(found)) == len(found)


def test_a_field_at_its_neutral_value_leaves_the_key_alone():
    """So that a field that is new makes nothing stale."""
    assert "late" not in keys.canonical(All()) and keys.canonical(All(late=0.5))["late"] == 0.5
    assert "patience" in keys.canonical(All())  # None is no neutral value by itself


def test_equal_values_are_equal_keys():
    assert key(widths=[4, 8]) == key(widths=(4, 8)) and key(rate=1) == key(rate=1.0)
    assert key(mesh=[1, 2]) == key(mesh=(1, 2)) and key(steps=np.int32(7)) == key(steps=7)
    assert key(extra={"a": [1, (2, 3)]}) == key(extra={"a": (1, [2, 3])})
    assert key(steps=1) != key(steps=2) and key(name="1") != key(name="2")


def test_the_order_of_a_mapping_counts():
    """Kinds of pseudo-queries are made in theirs."""
    assert key(rates={"x": 1.0, "y": 1.0}) != key(rates={"y": 1.0, "x": 1.0})


def test_a_path_is_its_content(tmp_path):
    one, other = tmp_path / "one.tsv", tmp_path / "elsewhere.tsv"
    one.write_text("q1 d1\n")
    other.write_text("q1 d1\n")
    before = key(file=str(one))
    assert key(file=str(other)) == before != key()
    other.write_text("q1 d2\n")
    assert key(file=str(other)) != before
    with pytest.raises(InputError, match="cannot be read.*"):
        key(file=str(tmp_path / "nothing"))


def test_a_folder_is_the_content_and_names_of_its_files(tmp_path):
    def folder(name: str, **files: str) -> pathlib.Path:
        (tmp_path / name / "deep").mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / name / "deep" / file).write_text(text)
        return tmp_path / name

    one, same = folder("one", a="1", b="2"), folder("same", b="2", a="1")
    named, said = folder("named", a="1", c="2"), folder("said", a="1", b="3")
    assert keys.content(one) == keys.content(same)
    assert len({keys.content(other) for other in (one, named, said)}) == 3
    assert keys.canonical(one) == {"content": keys.content(one)}
    assert keys.content_or_name("minilm", ("minilm", "t5")) == "minilm"
    assert keys.content_or_name(str(one), ("minilm", "t5")) == {"content": keys.content(one)}


def test_an_artefact_is_what_its_manifest_says_of_its_files(tmp_path):
    """When it was made and what of else its manifest says does not count."""
    from gr_jax import storage

    for name, meta, text in (("one", {"a": 1}, "x"), ("same", {"a": 2}, "x"), ("other", {"a": 1}, "y")):
        with storage.write_folder(tmp_path / name, "kind", made_from=name, meta=meta) as folder:
            (folder / "file").write_text(text)
    one, same, other = (keys.content(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same != other


def test_what_a_key_cannot_say_is_refused():
    with pytest.raises(InputError, match="a key cannot say a set"):
        keys.canonical({1, 2})
    with pytest.raises(InputError, match="a key cannot say a function"):
        keys.canonical({"a": [lambda: None]})


# ── Rules of several fields


def test_shares_are_of_known_kinds_and_not_all_zero():
    check_shares("X.rates", {"query": 0.0, "pseudo": 2.0}, ("query", "pseudo"), "kinds")
    for wrong in ({}, {"query": 0.0}, {"query": -1.0, "pseudo": 2.0}, {"querry": 1.0}):
        with pytest.raises(InputError, match="X.rates are not shares of kinds.*query, pseudo"):
            check_shares("X.rates", wrong, ("query", "pseudo"), "kinds")


def test_a_width_is_a_multiple_of_the_heads():
    check_heads("X", 32, 4)
    with pytest.raises(InputError, match=r"X.width is not a multiple of X.heads \(got 30\). With 4 heads, 32 is one."):
        check_heads("X", 30, 4)
