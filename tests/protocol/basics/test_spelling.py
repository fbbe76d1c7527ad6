"""Names that some readers take for others."""

from typing import Any

import pytest
from msgspec import Raw

from actors.protocol import filter as filters
from actors.protocol import modern_tasks, spelling, subjects, tasks
from actors.protocol.capabilities import TASKS
from actors.protocol.errors import Malformed, Refusal
from actors.protocol.payload import dumps
from actors.protocol.spelling import VALUES_MAX, Members, folded
from gateway.sealing import AesSealer

SEALER = AesSealer([b"k"])


@pytest.mark.parametrize(
    ("one", "other"), [("name", "NAME"), ("arguments", "argument\u017f"), ("taskId", "tas\u212aID"), ("é", "É")]
)
def test_names_that_differ_in_capitals_alone_are_folded_to_one(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert Members([one]).other(other) == one


@pytest.mark.parametrize("name", ["name", "names", "na_me", "straße", "ﬁle", ""])
def test_others_stay_others(name: str) -> None:
    assert Members(["name", "strasse", "file"]).other(name) is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "read", "Name": "delete"}),
        ("tools/call", {"name": "read", "arguments": {}, "ARGUMENTS": {"x": 1}}),
        ("tools/call", {"name": "read", "RequestState": "theirs"}),
        ("prompts/get", {"name": "hello", "nAme": "secret"}),
        ("resources/read", {"uri": "test:///pub", "URI": "test:///priv"}),
        ("resources/subscribe", {"Uri": "test:///priv", "uri": "test:///pub"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a"}, "Ref": {}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a", "Name": "b"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a", "Type": "ref/resource", "uri": "x"}}),
    ],
)
def test_9_a_request_names_one_thing_whoever_reads_it(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="could be taken for"):
        subjects.named(method, dumps(params))


def test_9_a_request_about_a_task_names_one_whoever_reads_it() -> None:
    params = dumps({"taskId": "mine", "TaskID": "theirs"})
    with pytest.raises(Malformed, match="could be taken for"):
        tasks.target(params)
    with pytest.raises(Malformed, match="could be taken for"):
        modern_tasks.routed(params, frozenset({f"ext:{TASKS}={{}}"}), SEALER, principal="ann")


def test_9_a_listen_names_its_resources_once_whoever_reads_it() -> None:
    params = dumps({"notifications": {"resourceSubscriptions": ["a"], "ResourceSubscriptions": ["b"]}})
    with pytest.raises(Refusal, match="could be taken for"):
        filters.read(params, others=True)
    with pytest.raises(Refusal, match="could be taken for"):
        filters.beside(dumps({"notifications": {}, "Notifications": {"taskIds": ["x"]}}))


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ({"path": 1, "Path": 2}, False),
        ({"a": [{"b": {"x": 1, "X": 2}}]}, False),
        ({"a": [{"Limit": 1}]}, False),
        ({"limit": 1, "a": [{"limit": {}}, "Limit"], "Other": 1}, True),
        ([], True),
    ],
)
def test_arguments_have_one_reading(value: Any, good: bool) -> None:
    if good:
        spelling.check_within(value, Members(["limit"]))
        return
    with pytest.raises(Malformed):
        spelling.check_within(value, Members(["limit"]))


@pytest.mark.parametrize(
    "value",
    [[0] * VALUES_MAX, [[{}] * 100] * 200, {str(n): 0 for n in range(VALUES_MAX)}],
    ids=["list", "deep", "object"],
)
def test_arguments_that_are_looked_through_have_so_many_values(value: Any) -> None:
    with pytest.raises(Malformed, match="more than 16384 values"):
        spelling.check_within(value, Members([]))
    spelling.check_within([0] * (VALUES_MAX - 1), Members([]))
    spelling.check_within("x" * 1_000_000, Members([]))


def test_arguments_however_deep_are_looked_through() -> None:
    value: Any = {"x": 1, "X": 1}
    for _ in range(5_000):
        value = [value]
    with pytest.raises(Malformed):
        spelling.check_within(value, Members([]))
    assert subjects.arguments(Raw(b'{"name":"a"}'), Members([])) == ({}, Raw(b'{"name":"a"}'))
