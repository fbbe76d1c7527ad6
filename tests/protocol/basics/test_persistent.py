"""Mappings that are values, of which each earlier one stays what it was."""

from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.persistent import PersistentMap

CHANGE = st.tuples(st.integers(0, 30), st.integers(0, 5), st.none() | st.integers())
"""Of which of the values so far, which key, and what to: None takes it out."""


def test_members_are_read_as_in_a_dict():
    mapping = PersistentMap({"a": 1}).having("b", 2).having("a", 3)
    assert mapping == {"a": 3, "b": 2}
    assert list(mapping) == ["a", "b"]
    assert (mapping.get("b"), mapping.get("c"), "a" in mapping, len(mapping)) == (2, None, True, 2)
    assert {**mapping} == dict(mapping.items())
    assert PersistentMap() == {}


def test_what_is_not_there_is_taken_out_in_vain():
    assert PersistentMap({"a": 1}).without("b") == {"a": 1}


def test_members_may_be_gone_through_while_other_values_are_made():
    first = last = PersistentMap({n: n for n in range(9)})
    for key in first:
        last = last.without(key)
    for key, value in first.items():
        last = last.having(key, -value)
    assert (first, last) == ({n: n for n in range(9)}, {n: -n for n in range(9)})


def test_a_copy_has_nothing_of_what_it_was_made_of():
    members = {"a": 1}
    mapping = PersistentMap(members)
    members["a"] = 2
    assert mapping == {"a": 1}


@given(st.lists(CHANGE, max_size=30), st.randoms(use_true_random=False))
def test_every_value_stays_what_it_was(changes, random):
    values = [(PersistentMap(), {})]
    for which, key, value in changes:
        mapping, members = values[which % len(values)]
        if value is None:
            values.append((mapping.without(key), {k: v for k, v in members.items() if k != key}))
        else:
            values.append((mapping.having(key, value), {**members, key: value}))
    random.shuffle(values)
    for mapping, members in values:
        assert mapping == members
        assert len(mapping) == len(members)
