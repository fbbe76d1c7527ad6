"""The extension `io.modelcontextprotocol/tasks` (SEP-2663), carried between clients and modern servers.

A backend sees the gateway's credential only, so the gateway sees to it that a task is nobody's but its principal's:
the id that a client gets is sealed, with the backend and the principal inside. Sealing twice gives two ids for one
task, so a client's own id is what every later message about the task carries; the headers upstream follow from the
body.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol import capabilities, errors, filter, methods, spelling
from actors.protocol.capabilities import TASKS, ClientBits
from actors.protocol.cursors import Sealer
from actors.protocol.errors import BROKEN, ProtocolError, Refusal
from actors.protocol.outcomes import TASK
from actors.protocol.payload import dumps, members, replace_members, text_or_none

EXTENSION: Final = TASKS
NOTIFICATION: Final = filter.TASK
"""What it adds to the stream of a `subscriptions/listen` that names `taskIds`."""
METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
"""What it adds to the methods of a client; each names a `taskId`."""


def is_strange(method: str) -> bool:
    """Whether neither the protocol, in any revision, nor this extension has such a method."""
    return method not in methods.METHODS and method not in METHODS and method != NOTIFICATION


STATUSES: Final = frozenset({"working", "input_required", "completed", "failed", "cancelled"})

VERSION: Final = 1
"""Of the fields below: an id of another version is unknown."""


class Handle(Struct, frozen=True, array_like=True):
    """What is inside an id: `task` is the backend's own id, `tool` its tool that runs as this task, if it is known."""

    backend: str
    principal: str
    task: str
    version: int = VERSION
    tool: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Handle).decode


# Who may ----------------------------------------------------------------------------------------------------


def declared(bits: ClientBits) -> bool:
    """Whether a request came with the extension."""
    return capabilities.tasks_declared(bits)


def undeclared() -> ProtocolError:
    """-32021 for a request about tasks that came without the extension."""
    return errors.missing_client_capability(dumps({"extensions": {EXTENSION: {}}}))


def unknown() -> ProtocolError:
    """For every id that is of no use, whatever the cause, so that none can be told from another."""
    return errors.invalid_params("Unknown task")


# Ids --------------------------------------------------------------------------------------------------------


def seal(backend: str, principal: str, task: str, sealer: Sealer, tool: str = "") -> str:
    """The id of a backend's task as its client gets it."""
    return sealer.seal(_encode(Handle(backend, principal, task, tool=tool)), _context(principal))


def unseal(id: str, sealer: Sealer, *, principal: str) -> Handle:
    """What `seal` was given. Refusal (-32602) for an id that is forged, or of another principal."""
    plain = sealer.unseal(id, _context(principal))
    try:
        handle = None if plain is None else _decode(plain)
    except BROKEN:
        handle = None
    if handle is None or (handle.principal, handle.version) != (principal, VERSION):
        raise Refusal(unknown())
    return handle


def _context(principal: str) -> bytes:
    return _encode((TASK, principal))


# From the client --------------------------------------------------------------------------------------------


class Routed(Struct, frozen=True):
    """A request about a task, for its backend; `id` is the client's for the task, `tool` what runs as it."""

    backend: str
    id: str
    params: Raw
    tool: str = ""


def routed(params: Raw, bits: ClientBits, sealer: Sealer, *, principal: str) -> Routed:
    """A request of METHODS with the id that its backend knows. Refusal: -32021 without the extension, -32602 for an
    unknown task. Raises Malformed for params that are no object."""
    if not declared(bits):
        raise Refusal(undeclared())
    present = members(params)
    spelling.check(present)
    id = text_or_none(present.get("taskId"))
    if id is None:
        raise Refusal(errors.invalid_params("taskId must be a string"))
    handle = unseal(id, sealer, principal=principal)
    return Routed(handle.backend, id, replace_members(params, {"taskId": dumps(handle.task)}), handle.tool)


Known = Callable[[str, str], bool]
"""Whether tasks of a backend's tool may be heard of."""


def filtered(ids: Iterable[str], sealer: Sealer, may: Known, *, principal: str) -> dict[str, dict[str, str]]:
    """The tasks that a client listens to: by backend, its own id → the client's. Those that are unknown are left out,
    and so are not acknowledged."""
    found: dict[str, dict[str, str]] = {}
    for id in ids:
        try:
            handle = unseal(id, sealer, principal=principal)
        except Refusal:
            continue
        if may(handle.backend, handle.tool):
            found.setdefault(handle.backend, {})[handle.task] = id
    return found


# From the backend -------------------------------------------------------------------------------------------


def is_task(result: Raw) -> bool:
    """Whether a result says that the call goes on as a task. Raises Malformed for what is no object."""
    return text_or_none(members(result).get("resultType")) == TASK


def created(
    method: str, result: Raw, bits: ClientBits, backend: str, sealer: Sealer, *, principal: str, tool: str = ""
) -> Raw:
    """A result that is a task, under the id for its client. Refusal (-32603) where none may come (for another method,
    or without the extension), and for one that is malformed."""
    task = text_or_none(members(result).get("taskId"))
    if method != "tools/call" or not declared(bits):
        text = "the server made a task where none may be"
        raise Refusal(errors.internal(text, reason="malformed", executed="yes", backend=backend))
    if task is None or text_or_none(members(result).get("status")) not in STATUSES:
        text = "the server's task is malformed"
        raise Refusal(errors.internal(text, reason="malformed", executed="yes", backend=backend))
    return replace_members(result, {"taskId": dumps(seal(backend, principal, task, sealer, tool))})


def answered(method: str, result: Raw, id: str) -> Raw:
    """A backend's answer to a request of METHODS about the task that its client knows by this id.

    It is complete, also where it says `task`, as older examples have it. Refusal (-32603) for one of another task.
    """
    changes: dict[str, Raw | None] = {"resultType": dumps("complete")}
    if method == "tasks/get":
        if text_or_none(members(result).get("status")) not in STATUSES:
            raise Refusal(errors.internal("the server's task is malformed", reason="malformed", executed="no"))
        changes["taskId"] = dumps(id)
    return replace_members(result, changes)


def told(params: Raw, ids: Mapping[str, str]) -> Raw | None:
    """The params of a `notifications/tasks` for a listener that has these of the backend's tasks (its id → the
    client's); None for any other task. Raises Malformed."""
    id = ids.get(text_or_none(members(params).get("taskId")) or "")
    return None if id is None else replace_members(params, {"taskId": dumps(id)})
