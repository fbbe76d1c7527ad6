"""Answers are given again as long as their server allows it, and to nobody who must not see them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.machines.upstream import cache as module
from actors.machines.upstream.cache import Cache
from actors.protocol import payload as json
from tests.support.modern_upstream import client

ALICE, BOB = client(principal="alice"), client(principal="bob")


def answer(scope: str | None = "private", ttl: object = 1000, **members: object) -> Raw:
    hints = {"ttlMs": ttl, **({} if scope is None else {"cacheScope": scope})}
    return json.dumps({"resultType": "complete", **hints, **members})


def params(**members: object) -> Raw:
    return json.dumps(members)


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_an_answer_is_fresh_until_its_time_is_over(cache):
    cache.put("tools/list", params(), ALICE, answer(tools=[]), 10.0)
    assert json.loads(cache.get("tools/list", params(), ALICE, 10.5))["ttlMs"] == 500
    assert cache.get("tools/list", params(), ALICE, 11.0) is None


@pytest.mark.parametrize("ttl", [0, -5, None, "1000", True])
def test_without_a_time_nothing_is_kept(cache, ttl):
    cache.put("tools/list", params(), ALICE, answer(ttl=ttl), 0.0)
    assert len(cache) == 0


def test_no_time_is_too_long_to_be_reckoned_with(cache):
    cache.put("tools/list", params(), ALICE, answer(ttl=10**400), 0.0)
    assert cache.get("tools/list", params(), ALICE, module.LONGEST - 1) is not None
    assert cache.get("tools/list", params(), ALICE, module.LONGEST) is None


@pytest.mark.parametrize("scope", ["private", None, "shared"])
def test_what_is_not_public_is_for_one_principal(cache, scope):
    cache.put("resources/read", params(uri="a"), ALICE, answer(scope), 0.0)
    assert cache.get("resources/read", params(uri="a"), ALICE, 0.1) is not None
    assert cache.get("resources/read", params(uri="a"), BOB, 0.1) is None


def test_what_is_public_is_for_all(cache):
    cache.put("resources/read", params(uri="a"), ALICE, answer("public"), 0.0)
    assert cache.get("resources/read", params(uri="a"), BOB, 0.1) is not None


def test_nobody_in_particular_has_nothing_private(cache):
    cache.put("tools/list", params(), client(principal=""), answer(), 0.0)
    assert len(cache) == 0


def test_clients_that_declare_other_things_have_answers_of_their_own(cache):
    cache.put("tools/list", params(), ALICE, answer(), 0.0)
    assert cache.get("tools/list", params(), client(principal="alice", roots={}), 0.1) is None


@pytest.mark.parametrize("more", [{"inputResponses": {}}, {"requestState": "s"}, {"odd": 1}])
def test_a_request_that_says_more_is_not_answered_from_what_is_kept(cache, more):
    cache.put("resources/read", params(uri="a"), ALICE, answer(), 0.0)
    assert cache.get("resources/read", params(uri="a", **more), ALICE, 0.1) is None
    cache.put("resources/read", params(uri="b", **more), ALICE, answer(), 0.0)
    assert cache.get("resources/read", params(uri="b"), ALICE, 0.1) is None


def test_calls_of_tools_are_never_kept(cache):
    cache.put("tools/call", params(name="a"), ALICE, answer("public"), 0.0)
    assert len(cache) == 0


def test_pages_are_kept_one_by_one_and_an_empty_cursor_is_one(cache):
    for cursor in ({}, {"cursor": ""}, {"cursor": "2"}):
        cache.put("tools/list", params(**cursor), ALICE, answer(page=str(cursor)), 0.0)
    assert len(cache) == 3
    assert json.loads(cache.get("tools/list", params(cursor=""), ALICE, 0.1))["page"] == "{'cursor': ''}"


def test_all_pages_of_a_listing_have_the_scope_of_the_first(cache):
    cache.put("tools/list", params(), ALICE, answer("private"), 0.0)
    cache.put("tools/list", params(cursor="2"), ALICE, answer("public"), 0.0)
    assert cache.get("tools/list", params(cursor="2"), BOB, 0.1) is None
    assert cache.get("tools/list", params(cursor="2"), ALICE, 0.1) is not None


def test_a_page_that_turns_out_to_be_private_takes_the_public_ones_back(cache):
    cache.put("tools/list", params(), ALICE, answer("public"), 0.0)
    cache.put("tools/list", params(cursor="2"), ALICE, answer("private"), 0.0)
    assert cache.get("tools/list", params(), BOB, 0.1) is None
    assert cache.get("tools/list", params(cursor="2"), BOB, 0.1) is None


def test_a_change_outdates_its_list_at_once(cache):
    cache.put("tools/list", params(), ALICE, answer(), 0.0)
    cache.put("prompts/list", params(), ALICE, answer(), 0.0)
    cache.changed("notifications/tools/list_changed", params())
    assert cache.get("tools/list", params(), ALICE, 0.1) is None
    assert cache.stale("tools/list", params(), ALICE, 0.1) is None
    assert cache.get("prompts/list", params(), ALICE, 0.1) is not None


def test_an_update_outdates_the_resource_and_its_parts(cache):
    for uri in ("x:/a", "x:/a/b", "x:/c"):
        cache.put("resources/read", params(uri=uri), ALICE, answer("public"), 0.0)
    cache.changed("notifications/resources/updated", params(uri="x:/a"))
    assert [cache.get("resources/read", params(uri=u), BOB, 0.1) is None for u in ("x:/a", "x:/a/b", "x:/c")] == [
        True,
        True,
        False,
    ]


def test_an_old_answer_helps_while_its_server_is_away_and_says_so(cache):
    cache.put("tools/list", params(), ALICE, answer(), 0.0)
    assert json.loads(cache.stale("tools/list", params(), ALICE, 100.0))["ttlMs"] == 0
    assert cache.stale("tools/list", params(), ALICE, 2000.0) is None


def test_a_later_answer_takes_the_place_of_an_earlier_one(cache):
    cache.put("tools/list", params(), ALICE, answer(n=1), 0.0)
    cache.put("tools/list", params(), ALICE, answer(n=2), 0.0)
    assert json.loads(cache.get("tools/list", params(), ALICE, 0.1))["n"] == 2
    cache.put("tools/list", params(), ALICE, answer("public"), 0.0)
    cache.put("tools/list", params(), ALICE, answer("private"), 0.0)
    assert cache.get("tools/list", params(), BOB, 0.1) is None
    cache.put("tools/list", params(), ALICE, answer(ttl=0), 0.0)
    assert len(cache) == 0
    assert cache.size == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.booleans()), max_size=80))
def test_the_cache_is_bounded_and_knows_its_size(steps):
    before = module.ENTRIES, module.TOTAL_BYTES, module.ENTRY_BYTES
    module.ENTRIES, module.TOTAL_BYTES, module.ENTRY_BYTES = 8, 600, 200
    try:
        cache = Cache()
        for uri, size, public in steps:
            payload = answer("public" if public else "private", text="x" * size * 4)
            cache.put("resources/read", params(uri=str(uri)), ALICE, payload, 0.0)
            assert len(cache) <= 8
            assert cache.size <= 600
        kept = (cache.get("resources/read", params(uri=str(uri)), ALICE, 0.0) for uri in range(41))
        assert cache.size == sum(len(payload) for payload in kept if payload is not None)
    finally:
        module.ENTRIES, module.TOTAL_BYTES, module.ENTRY_BYTES = before
