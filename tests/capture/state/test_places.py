"""Contents of places count as the same if no computation could tell them apart."""

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.capture.state.places import ABSENT, Places, is_same

VALUES = st.one_of(
    st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf]), st.sampled_from("ab"),
    st.complex_numbers(max_magnitude=1), st.binary(max_size=1), st.none(),
    st.sampled_from([np.float32(1), np.float64(1), np.float64(-0.0)]),
    st.sampled_from([Fraction(1), range(1), (1, 2.0), (1, 2)]),
)  # fmt: skip


def remembered(holder: Any, names: Any, *, is_sized: bool = False) -> Places:
    places = Places()
    places.add("it", holder, names, is_sized=is_sized)
    places.remember()
    return places


@given(VALUES, VALUES)
def test_two_values_are_the_same_if_they_print_the_same_and_have_one_type(one: Any, other: Any) -> None:
    assert is_same(one, other) is (type(one) is type(other) and repr(one) == repr(other))


@given(st.dictionaries(st.sampled_from("abcdef"), VALUES, min_size=1), st.sampled_from("abcdefg"), VALUES)
def test_a_change_of_a_holder_is_seen(holder: dict[str, Any], name: str, value: Any) -> None:
    places = remembered(holder, tuple(holder), is_sized=True)
    assert places.are_unchanged() and not [*places.changes()]
    then = holder.get(name, ABSENT)
    holder[name] = value
    changes = [*places.changes()]
    assert bool(changes) is not is_same(value, then)
    if changes:
        assert not places.are_unchanged()
    if changes and then is not ABSENT:
        assert [(each.name, each.then) for each in changes] == [(name, then)]
    places.remember()
    assert not [*places.changes()]


@pytest.mark.parametrize("count", [0, 1, 200])
def test_any_number_of_names_is_compared(count: int) -> None:
    holder = {str(number): object() for number in range(count)}
    places = remembered(holder, tuple(holder))
    assert places.are_unchanged()
    for name, kept in [*holder.items()]:
        holder[name] = object()
        assert not places.are_unchanged()
        holder[name] = kept
    assert places.are_unchanged()


def test_a_place_that_is_gone_is_a_change() -> None:
    holder = {"a": 1}
    places = remembered(holder, ("a",))
    del holder["a"]
    assert not places.are_unchanged()
    assert [(each.name, each.now, each.then) for each in places.changes()] == [("a", ABSENT, 1)]


def test_items_and_contents_are_compared() -> None:
    items, array = [1, 2], np.zeros(2)
    places = Places()
    places.add_items("a list", items)
    places.add_content("an array", "content", array.tobytes)
    places.remember()
    assert places.are_unchanged()
    items.append(3)
    array[0] = 1
    assert [(each.owner, each.name) for each in places.changes()] == [("a list", 2), ("an array", "content")]


def test_places_that_are_left_out_are_not_compared() -> None:
    holder = {"a": 1, "b": 2}
    places = Places({("it", "a")})
    places.add("it", holder, ("a", "b"))
    places.remember()
    holder["a"] = 5
    assert places.are_unchanged()
    holder["b"] = 5
    assert not places.are_unchanged()


KINDS: dict[str, Callable[[Places, str, SimpleNamespace], object]] = {
    "names": lambda places, owner, of: places.add(owner, vars(of), "abc", is_sized=True),
    "names that may be absent": lambda places, owner, of: places.add(owner, vars(of), "abcd", dict.get),
    "attributes": lambda places, owner, of: places.add(owner, of, "abcd", getattr),
    "values": lambda places, owner, of: places.add_items(owner, vars(of), dict.values),
    "keys": lambda places, owner, of: places.add_items(owner, vars(of), dict.keys),
    "a content": lambda places, owner, of: places.add_content(owner, "content", lambda: dict(vars(of))),
}
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], set[str]]] = {
    "another value": (lambda holder: holder.update(b=object()), {"keys"}),
    "a value that goes": (lambda holder: holder.pop("b"), set()),
    "one more": (lambda holder: holder.update(d=object()), set()),
    "all go": (lambda holder: holder.clear(), set()),
    "another name": (lambda holder: holder.update(d=holder.pop("c")), {"values"}),
    "values in another order": (lambda holder: holder.update(a=holder["b"], b=holder["a"]), {"keys"}),
}


@pytest.mark.parametrize("changed", range(3))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_change_of_one_holder_among_several_is_seen(kind: str, change: str, changed: int) -> None:
    holders = [SimpleNamespace(a=1.0, b=2.0, c=3.0) for _ in range(3)]
    places = Places()
    for owner, holder in enumerate(holders):
        KINDS[kind](places, str(owner), holder)
    places.remember()
    make, not_seen_by = CHANGES[change]
    make(vars(holders[changed]))
    assert places.are_unchanged() is (kind in not_seen_by)
    if kind not in not_seen_by:
        assert {each.owner for each in places.changes()} == {str(changed)}
    places.remember()
    assert not [*places.changes()]


def test_another_order_of_keys_is_seen() -> None:
    holder, places = {"a": 1, "b": 2}, Places()
    places.add_items("keys", holder, dict.keys)
    places.remember()
    holder["a"] = holder.pop("a")
    assert not places.are_unchanged()
    assert [(each.name, each.now) for each in places.changes()] == [(0, "b"), (1, "a")]
