"""Tasks of the extension between clients and servers of the era without sessions."""

import base64
import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import modern_tasks
from actors.protocol.errors import Refusal
from actors.protocol.headers import outbound
from actors.protocol.modern_tasks import EXTENSION

BITS = frozenset({f"ext:{EXTENSION}={{}}"})
TASK = {
    "resultType": "task",
    "taskId": "T",
    "status": "working",
    "createdAt": "2026-07-28T10:30:00Z",
    "lastUpdatedAt": "2026-07-28T10:30:00Z",
    "ttlMs": None,
}


class Seals:
    """A seal that shows that it was broken, and never gives the same text twice."""

    def __init__(self):
        self.count = 0
        self.context = b""
        """Of what was sealed last."""

    def seal(self, plain, context):
        self.count += 1
        self.context = context
        body = self.count.to_bytes(4, "big") + plain
        return base64.urlsafe_b64encode(hashlib.sha256(context + body).digest() + body).decode()

    def unseal(self, token, context):
        try:
            both = base64.urlsafe_b64decode(token)
        except ValueError:
            return None
        return both[36:] if both[:32] == hashlib.sha256(context + both[32:]).digest() else None


@pytest.fixture(scope="session")
def sealer():
    return Seals()


def plain(made):
    return json.loads(bytes(made))


def refused(call, *arguments, **more):
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value.error


@given(st.text(max_size=10), st.text(max_size=10), st.text(max_size=10))
def test_an_id_opens_for_its_principal_alone(backend, principal, task):
    sealer = Seals()
    id = modern_tasks.seal(backend, principal, task, sealer)
    handle = modern_tasks.unseal(id, sealer, principal=principal)
    assert (handle.backend, handle.principal, handle.task) == (backend, principal, task)
    assert refused(modern_tasks.unseal, id, sealer, principal=principal + "x").code == -32602


@pytest.mark.parametrize("id", ["", "T", "é", "AAAA", "=" * 50])
def test_what_is_no_id_is_an_unknown_task_like_any_other(sealer, id):
    foreign = modern_tasks.seal("b", "p", "T", sealer)
    error = refused(modern_tasks.unseal, id, sealer, principal="q")
    other = refused(modern_tasks.unseal, foreign, sealer, principal="q")
    assert (error.code, error.message, bytes(error.data)) == (other.code, other.message, bytes(other.data))
    assert error.message == "Invalid params: Unknown task"


def test_a_sealed_thing_of_another_kind_is_no_id(sealer):
    assert modern_tasks.unseal(modern_tasks.seal("b", "p", "T", sealer), sealer, principal="p").task == "T"
    context = sealer.context
    assert refused(modern_tasks.unseal, sealer.seal(b"\x90", context), sealer, principal="p").code == -32602
    old = sealer.seal(msgspec.msgpack.encode(modern_tasks.Handle("b", "p", "T", version=0)), context)
    assert refused(modern_tasks.unseal, old, sealer, principal="p").code == -32602


def test_a_task_goes_to_its_client_under_an_id_of_its_own_and_comes_back_to_its_backend(sealer, raw):
    shown = plain(modern_tasks.created("tools/call", raw(TASK), BITS, "b", sealer, principal="p"))
    assert {**shown, "taskId": "T"} == TASK
    assert shown["taskId"] != "T"
    routed = modern_tasks.routed(
        raw({"taskId": shown["taskId"], "inputResponses": {"k": {}}}), BITS, sealer, principal="p"
    )
    assert (routed.backend, routed.id) == ("b", shown["taskId"])
    assert plain(routed.params) == {"taskId": "T", "inputResponses": {"k": {}}}
    assert dict(outbound("tasks/update", routed.params))["Mcp-Name"] == "T"


def test_a_request_without_the_extension_is_told_so(sealer, raw):
    id = modern_tasks.seal("b", "p", "T", sealer)
    for bits in (frozenset(), frozenset({"roots", "ext:other/tasks={}", f"ext:{EXTENSION}-not={{}}"})):
        error = refused(modern_tasks.routed, raw({"taskId": id}), bits, sealer, principal="p")
        assert error.code == -32021
        assert plain(error.data) == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


def test_the_error_for_it_is_as_the_schema_says(raw, conforms):
    error = {"jsonrpc": "2.0", "id": 1, "error": plain(modern_tasks.undeclared().raw)}
    conforms("2026-07-28", "MissingRequiredClientCapabilityError", error)


@pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": None}, {"taskId": "x"}])
def test_a_request_about_no_task_is_refused(sealer, raw, params):
    assert refused(modern_tasks.routed, raw(params), BITS, sealer, principal="p").code == -32602


def test_a_task_where_none_may_be_is_an_invalid_response(sealer, raw):
    for method, bits in (("tools/call", frozenset()), ("prompts/get", BITS), ("resources/read", BITS)):
        assert refused(modern_tasks.created, method, raw(TASK), bits, "b", sealer, principal="p").code == -32603
    for wrong in ({"taskId": 5}, {"status": "odd"}, {"status": None}):
        broken = raw({**TASK, **wrong})
        assert refused(modern_tasks.created, "tools/call", broken, BITS, "b", sealer, principal="p").code == -32603


def test_a_task_is_told_by_its_result_type(raw):
    assert modern_tasks.is_task(raw(TASK))
    for other in ({"resultType": "complete"}, {"taskId": "T"}, {"resultType": 5}):
        assert not modern_tasks.is_task(raw(other))


@pytest.mark.parametrize("kind", ["complete", "task", None])
def test_what_a_backend_says_of_a_task_is_complete_and_under_the_clients_id(raw, kind):
    said = {**TASK, "resultType": kind, "status": "completed", "result": {"content": [], "isError": True}}
    shown = plain(modern_tasks.answered("tasks/get", raw(said), "mine"))
    assert shown == {**said, "resultType": "complete", "taskId": "mine"}
    for method in ("tasks/update", "tasks/cancel"):
        assert plain(modern_tasks.answered(method, raw({}), "mine")) == {"resultType": "complete"}


def test_an_answer_that_is_no_task_is_an_error(raw):
    assert refused(modern_tasks.answered, "tasks/get", raw({"taskId": "T"}), "mine").code == -32603


def test_a_listener_hears_of_its_own_tasks_under_its_own_ids(sealer, raw):
    mine = [modern_tasks.seal(backend, "p", task, sealer) for backend, task in (("b", "1"), ("b", "2"), ("c", "1"))]
    foreign = modern_tasks.seal("b", "q", "3", sealer)
    ids = modern_tasks.filtered([*mine, foreign, "x"], sealer, lambda *_: True, principal="p")
    assert ids == {"b": {"1": mine[0], "2": mine[1]}, "c": {"1": mine[2]}}
    tooled = modern_tasks.seal("b", "p", "4", sealer, "hidden")
    may = {("b", ""), ("c", "")}
    assert modern_tasks.filtered([*mine, tooled], sealer, lambda *of: of in may, principal="p") == ids
    update = {name: value for name, value in TASK.items() if name != "resultType"}
    assert plain(modern_tasks.told(raw({**update, "taskId": "2"}), ids["b"])) == {**update, "taskId": mine[1]}
    assert modern_tasks.told(raw({**update, "taskId": "3"}), ids["b"]) is None
    assert modern_tasks.told(raw({"taskId": 5}), ids["b"]) is None
    assert modern_tasks.told(Raw(b"{}"), ids["b"]) is None
