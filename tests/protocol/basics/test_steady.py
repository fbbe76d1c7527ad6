"""A list whose definitions are the same is the same list, to the byte."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from actors.protocol.steady import same_definition, steady


def items(*texts: str) -> tuple[Raw, ...]:
    return tuple(Raw(text.encode()) for text in texts)


A, B, C = '{"name":"a","inputSchema":{"type":"object","title":"A"}}', '{"name":"b"}', '{"name":"c"}'
OTHER_A = '{"inputSchema": {"title":"A", "type":"object"}, "name":"a"}'


def test_the_same_items_in_another_order_are_the_list_that_is_known() -> None:
    known = items(A, B, C)
    assert steady(known, items(C, A, B), "name") is known


def test_the_members_of_an_item_in_another_order_are_the_same_item() -> None:
    known = items(A, B)
    assert steady(known, items(B, OTHER_A), "name") is known


def test_what_is_new_comes_last_in_the_servers_order_and_what_is_gone_leaves_no_hole() -> None:
    assert steady(items(A, B), items(C, '{"name":"d"}', B, A), "name") == items(A, B, C, '{"name":"d"}')
    assert steady(items(A, B, C), items(C, A), "name") == items(A, C)


def test_an_item_that_is_another_one_now_keeps_its_place() -> None:
    changed = '{"name":"a","inputSchema":{"type":"object","title":"Z"}}'
    assert steady(items(A, B), items(B, changed), "name") == items(changed, B)


def test_items_without_a_name_and_names_that_come_twice_are_all_kept() -> None:
    odd = items(A, "7", "null", A, '{"name":5}', B)
    assert sorted(map(bytes, steady(items(B), odd, "name"))) == sorted(map(bytes, odd))


def test_true_is_not_one_and_what_can_not_be_read_is_compared_by_its_bytes() -> None:
    assert not same_definition(Raw(b'{"a":true}'), Raw(b'{"a":1}'))
    deep = b"[" * 5000 + b"]" * 5000
    assert same_definition(Raw(deep), Raw(deep))
    assert not same_definition(Raw(deep), Raw(b" " + deep))


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(known=NAMES, fetched=NAMES, seed=st.integers(0, 1000))
def test_any_list_keeps_its_items_and_does_not_depend_on_the_order_in_which_they_came_again(
    known: list[str], fetched: list[str], seed: int
) -> None:
    def listed(names: list[str]) -> tuple[Raw, ...]:
        return tuple(Raw(json.encode({"name": name})) for name in names)

    once = steady(listed(known), listed(fetched), "name")
    assert sorted(map(bytes, once)) == sorted(map(bytes, listed(fetched)))
    again = list(fetched)
    random.Random(seed).shuffle(again)
    assert steady(once, listed(again), "name") is once
