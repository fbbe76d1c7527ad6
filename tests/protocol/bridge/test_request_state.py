"""`requestState` opens for whom it was made, for what it was made, for as long as it was made, and for nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.modern.request_state import State, digest, seal, unseal
from actors.protocol.errors import INVALID_PARAMS, Refusal
from actors.protocol.payload import dumps
from gateway.sealing import AesSealer

SEALER = AesSealer([b"a key"])
CALL = dumps({"name": "book", "arguments": {"seats": 2, "row": "F"}})


def state(**members: object) -> State:
    made = State("park", "alpha", "ada", "tools/call", digest("tools/call", CALL), 1000.0, "me.1", "7", 2)
    return replace(made, **members)


def opened(token: str, **members: object) -> State:
    asked = {"principal": "ada", "method": "tools/call", "params": CALL, "now": 999.0} | members
    return unseal(token, SEALER, **asked)  # type: ignore[arg-type]


def test_what_is_sealed_comes_back_as_it_was() -> None:
    assert opened(seal(state(), SEALER)) == state()


@pytest.mark.parametrize("upstream", [None, "", "opaque", "ü\n\0"])
def test_the_state_of_a_backend_comes_back_byte_exact(upstream: str | None) -> None:
    assert opened(seal(state(kind="wrap", upstream=upstream), SEALER)).upstream == upstream


@pytest.mark.parametrize(
    "other",
    [
        {"principal": "bob"},
        {"method": "prompts/get"},
        {"params": dumps({"name": "book", "arguments": {"seats": 3, "row": "F"}})},
        {"params": dumps({"name": "cancel", "arguments": {"seats": 2, "row": "F"}})},
        {"params": dumps({"name": "book"})},
        {"params": Raw(b"[]")},
        {"now": 1060.0},
    ],
    ids=str,
)
def test_it_opens_for_nothing_else(other: dict[str, object]) -> None:
    with pytest.raises(Refusal) as refused:
        opened(seal(state(), SEALER), **other)
    assert refused.value.error.code == INVALID_PARAMS


def test_clocks_may_differ_by_a_minute() -> None:
    token = seal(state(expires=1000.0), SEALER)
    assert opened(token, now=1059.0)
    assert opened(token, now=0.0)


def test_one_of_another_version_is_expired() -> None:
    with pytest.raises(Refusal):
        opened(seal(state(version=0), SEALER))


@given(st.integers(0, 10_000), st.sampled_from("ABCxyz019-_"))
def test_no_character_of_it_can_be_changed(at: int, by: str) -> None:
    token = seal(state(), SEALER)
    at %= len(token)
    forged = token[:at] + by + token[at + 1 :]
    if forged != token:
        with pytest.raises(Refusal):
            opened(forged)


@given(st.text())
def test_no_text_of_a_client_makes_it_fail_in_another_way(token: str) -> None:
    with pytest.raises(Refusal):
        opened(token)


def test_what_was_sealed_for_another_use_is_none() -> None:
    with pytest.raises(Refusal):
        opened(SEALER.seal(b"\x90", b"cursor"))


@pytest.mark.parametrize(
    "spelling",
    [
        b'{ "arguments": {"row":"F", "seats":2}, "name": "book" }',
        b'{"name":"\\u0062ook","arguments":{"seats":2,"row":"F"},"_meta":{"progressToken":9}}',
        b'{"name":"book","arguments":{"seats":2,"row":"F"},"inputResponses":{},"requestState":"x"}',
    ],
)
def test_the_digest_is_of_the_meaning_and_not_of_the_spelling(spelling: bytes) -> None:
    assert digest("tools/call", Raw(spelling)) == digest("tools/call", CALL)


def test_numbers_too_large_for_a_float_are_told_apart() -> None:
    one, other = (dumps({"name": "book", "arguments": {"n": n}}) for n in (2**200, 2**200 + 1))
    assert digest("tools/call", one) != digest("tools/call", other)


def test_resources_are_told_apart_by_their_uri() -> None:
    one, other = (dumps({"uri": uri}) for uri in ("test:///a", "test:///b"))
    assert digest("resources/read", one) != digest("resources/read", other)


def test_a_part_can_not_pass_for_another() -> None:
    one = dumps({"name": "a", "arguments": "b"})
    other = dumps({"name": 'a\0003\000"b"', "arguments": None})
    assert digest("tools/call", one) != digest("tools/call", other)
