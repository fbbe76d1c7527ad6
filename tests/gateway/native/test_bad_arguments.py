"""Arguments that do not fit, many of them at once: a short answer, for little work."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.native import Server
from gateway.native.errors import COUNTED, SHOWN, BadValuesError
from gateway.native.functions import read
from gateway.native.schemas import SEARCHED, Arguments

MANY = 20_000
ANSWER_MAX = 64 * 1024


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: list[int] = []
    nested: "list[Inner]" = []


async def everything(
    a: int = 0,
    rows: list[int] = [],  # noqa: B006
    names: dict[str, int] = {},  # noqa: B006
    either: list[int | bool | None] = [],  # noqa: B006
    pair: tuple[int, ...] = (),
    once: set[int] = set(),  # noqa: B006
    frozen: frozenset[int] = frozenset(),
    table: dict[str, list[list[int]]] = {},  # noqa: B006
    inner: Inner | None = None,
    inners: list[Inner] | dict[str, Inner] = [],  # noqa: B006
    choice: Literal["x", "y"] = "x",
) -> str:
    return "ran"


ARGUMENTS = Arguments("everything", read(everything).parameters)
WRONG = ["no"] * MANY
HOSTILE: dict[str, dict[str, Any]] = {
    "unknown": {f"x{n}": 1 for n in range(MANY)},
    "list": {"rows": WRONG},
    "mapping": {"names": {f"x{n}": "no" for n in range(MANY)}},
    "union": {"either": [{}] * MANY},
    "tuple": {"pair": WRONG},
    "set": {"once": WRONG},
    "frozenset": {"frozen": WRONG},
    "lists in lists": {"table": {f"x{n}": [["no"]] for n in range(MANY)}},
    "model": {"inner": {"rows": WRONG}},
    "models in models": {"inner": {"nested": [{"nested": [{"rows": WRONG}]}]}},
    "models": {"inners": [{"rows": ["no"]}] * MANY},
    "choice": {"choice": "z" * MANY},
    "long names": {"names": {"n" * 100_000: "no"}, "u" * 100_000: 1},
}


@pytest.mark.parametrize("arguments", HOSTILE.values(), ids=HOSTILE)
def test_the_search_for_faults_ends_early_and_says_little(arguments: dict[str, Any]) -> None:
    encoded = json.dumps(arguments).encode()
    with pytest.raises(BadValuesError) as told:
        ARGUMENTS.parse(encoded)
    found = told.value.__context__
    assert isinstance(found, ValidationError)
    unknown = len(arguments.keys() - ARGUMENTS.schema["properties"])
    assert found.error_count() <= COUNTED + unknown
    assert 0 < len(str(told.value)) < ANSWER_MAX / 4


def test_the_first_unknown_arguments_are_named_and_the_others_counted() -> None:
    with pytest.raises(BadValuesError) as told:
        ARGUMENTS.parse(json.dumps(HOSTILE["unknown"]).encode())
    *first, rest = str(told.value).split("; ")
    assert first == [f"x{n}: Extra inputs are not permitted" for n in range(SHOWN)]
    assert rest == f"and {MANY - SHOWN} more"


def test_of_short_arguments_the_first_faults_are_named_wherever_they_are() -> None:
    with pytest.raises(BadValuesError) as told:
        ARGUMENTS.parse(json.dumps({"rows": [1, *["no"] * 12]}).encode())
    *first, rest = str(told.value).split("; ")
    assert [fault.partition(":")[0] for fault in first] == [f"rows.{n}" for n in range(1, SHOWN + 1)]
    assert rest == "and 2 more"


def test_of_long_arguments_the_first_fault_of_each_container_is_named() -> None:
    with pytest.raises(BadValuesError) as told:
        ARGUMENTS.parse(json.dumps({"rows": [1, *WRONG], "names": {"n": "no"}, "a": "no"}).encode())
    assert [fault.partition(":")[0] for fault in str(told.value).split("; ")] == ["a", "rows.1", "names.n"]


JUST = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["x", "1", ""]) | st.floats(-2, 2)
VALUES = st.recursive(
    JUST,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["rows", "nested", "k"]), v, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(ARGUMENTS.schema["properties"])), VALUES, max_size=3))
def test_to_stop_at_the_first_fault_changes_nothing_of_what_is_taken(arguments: dict[str, Any]) -> None:
    encoded = json.dumps(arguments).encode()
    assert len(encoded) < SEARCHED
    try:
        taken = ARGUMENTS.check(arguments)
    except BadValuesError:
        with pytest.raises(BadValuesError):
            ARGUMENTS.parse(encoded)
    else:
        assert ARGUMENTS.parse(encoded) == taken


async def test_no_answer_to_bad_arguments_is_long_and_errors_say_that_nothing_ran(connect: Any, failed: Any) -> None:
    server = Server("t")
    server.tool(everything)
    server.resource("test://one")(_text)
    server.prompt(_named)
    client = await connect(server)
    for arguments in HOSTILE.values():
        assert len(await client.error("everything", **arguments)) < ANSWER_MAX
    long = "n" * 1_000_000
    for method, params in (
        ("tools/call", {"name": long}),
        ("resources/read", {"uri": long}),
        ("resources/subscribe", {"uri": long}),
        ("prompts/get", {"name": long}),
        ("prompts/get", {"name": "_named", "arguments": HOSTILE["unknown"]}),
        ("logging/setLevel", {"level": long}),
    ):
        with pytest.raises(failed) as caught:
            await client.request(method, params)
        answer = [message for message, _ in client.answers.values()][-1]
        assert len(json.dumps(answer)) < ANSWER_MAX, method
        if method != "resources/read" and method != "resources/subscribe":
            assert caught.value.data == {"executed": "no"}, method


async def _text() -> str:
    return "text"


async def _named(name: str) -> str:
    return name
