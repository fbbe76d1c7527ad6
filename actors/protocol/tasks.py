"""Tasks of 2025-11-25 (experimental), carried between a client and legacy servers, in both directions: either
end may run what the other one asks for as a task, and is then polled by it.

Where several servers are behind one endpoint, the client knows the task of a server as `<backend>:<its id>`;
nothing is kept for that, so a task outlives the session's process as it does its server's connection. A task that
the client runs keeps its id, and belongs to the backend that asked for it: no other may look at it.

`tasks/list` is never offered: servers see the gateway's credential only, and cannot tell whose tasks they list
(tasks, "Security Considerations").
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol import errors, spelling
from actors.protocol.capabilities import Capabilities, parse
from actors.protocol.errors import Malformed, ProtocolError, Refusal
from actors.protocol.messages import EMPTY, Request
from actors.protocol.meta import RELATED_TASK_KEY
from actors.protocol.naming import Owner
from actors.protocol.payload import dumps, is_object, members, mentions, meta_of, replace_members, text_or_none
from actors.protocol.versions import can_use

SEPARATOR: Final = ":"
"""Between a backend, in whose name it does not occur, and its own id of a task."""

CLIENT_TASKS_MAX: Final = 256
"""Tasks that one client runs for servers and that are remembered; the oldest is forgotten first."""

AUGMENTED: Final[dict[str, tuple[str, ...]]] = {
    "tools/call": ("tasks", "requests", "tools", "call"),
    "sampling/createMessage": ("tasks", "requests", "sampling", "createMessage"),
    "elicitation/create": ("tasks", "requests", "elicitation", "create"),
}
"""Requests that may be made as tasks, and what their receiver must have declared for it."""

ASKING: Final[dict[str, tuple[str, ...]]] = {
    "tasks/get": ("tasks",),
    "tasks/result": ("tasks",),
    "tasks/cancel": ("tasks", "cancel"),
}
"""Requests about a task, and what the one who runs it must have declared."""
MEMBER: Final = b'"task"'
"""Of the params of a request that is to become a task."""
RESULT: Final = "tasks/result"
STATUS: Final = "notifications/tasks/status"

_IN_PARAMS: Final = frozenset({*ASKING, STATUS})
"""Methods whose params are about the task in `taskId`."""
_IN_RESULT: Final = frozenset({"tasks/get", "tasks/cancel"})
"""Methods whose result is a task."""

Rename: TypeAlias = Callable[[str], str]


# Who may ----------------------------------------------------------------------------------------------------


def offered(declared: Raw) -> Raw:
    """The capabilities of one end as the other gets them: without `tasks.list`, and without tasks that nobody can
    make. The same object if nothing changes."""
    capabilities = parse(declared)
    tree: Any = capabilities.tree.get("tasks")
    if not isinstance(tree, dict):
        return replace_members(declared, {"tasks": None}) if "tasks" in capabilities.tree else declared
    if not any(capabilities.has(path) for path in AUGMENTED.values()):
        return replace_members(declared, {"tasks": None})
    if "list" not in tree:
        return declared
    return replace_members(declared, {"tasks": dumps({name: value for name, value in tree.items() if name != "list"})})


def merged(declared: Iterable[Raw], *, pending: bool) -> Raw | None:
    """The `tasks` member of several servers behind one endpoint: what any of them has or, with `pending`, may have.
    None if none has any."""
    servers = [parse(raw) for raw in declared]
    if not pending and not any(server.has(AUGMENTED["tools/call"]) for server in servers):
        return None
    tree: dict[str, Any] = {"requests": {"tools": {"call": {}}}}
    if pending or any(server.has(("tasks", "cancel")) for server in servers):
        tree["cancel"] = {}
    return dumps(tree)


def may_augment(receiver: Capabilities, version: str, method: str) -> bool:
    """Whether a request may be made as a task of this receiver. Elsewhere the receiver would ignore it."""
    return can_use(version, "tasks") and method in AUGMENTED and receiver.has(AUGMENTED[method])


def asks_for_task(receiver: Capabilities | None, version: str, request: Request) -> bool:
    """Whether a request that mentions MEMBER is to become a task of this receiver. Raises Malformed."""
    return receiver is not None and may_augment(receiver, version, request.method) and "task" in members(request.params)


def for_model(method: str, *, as_task: bool = False) -> bool:
    """Whether a model reads what is answered to a request, so that what it was not made for can be a result in words.
    What is to become a task is answered with a task, or with an error (2025-11-25, tasks, "Creating Tasks")."""
    return method == "tools/call" and not as_task


def refusal(receiver: Capabilities, version: str, method: str) -> ProtocolError | None:
    """Why one end may not ask this about a task of the other; None if it may."""
    path = ASKING.get(method)
    allowed = path is not None and can_use(version, "tasks") and receiver.has(path)
    return None if allowed else errors.method_not_found(method)


def no_task_of(method: str) -> ProtocolError:
    """For a request that is to become a task of a server which runs none (tasks, "Tool-Level Negotiation")."""
    return errors.method_not_found(f"{method} as a task")


def unknown() -> ProtocolError:
    """For every id that means nothing, whatever the cause."""
    return errors.invalid_params("Unknown task")


# Names of servers' tasks ------------------------------------------------------------------------------------


def expose(backend: str, task: str) -> str:
    """A server's task as clients know it, where there are several servers."""
    return f"{backend}{SEPARATOR}{task}"


def resolve(exposed: str, backends: Collection[str]) -> Owner:
    """Whose task this is, and its id there. Refusal (-32602) for one of no present backend."""
    backend, separator, task = exposed.partition(SEPARATOR)
    if not separator or backend not in backends:
        raise Refusal(unknown())
    return Owner(backend, task)


def target(params: Raw) -> str:
    """The task that a request is about. Refusal (-32602) if it names none. Raises Malformed."""
    present = members(params)
    spelling.check(present)
    task = text_or_none(present.get("taskId"))
    if task is None:
        raise Refusal(errors.invalid_params("taskId must be a string"))
    return task


# Tasks that a client runs -----------------------------------------------------------------------------------


class ClientTasks(Struct, frozen=True):
    """Which backend each of a client's tasks was made for."""

    owners: dict[str, str] = {}

    def made(self, backend: str, result: Raw) -> "ClientTasks":
        """After a client's result for a request of this backend, be it a task or not. A known id changes no hands."""
        task = created(result)
        if task is None or task in self.owners:
            return self
        owners = {**self.owners, task: backend}
        if len(owners) > CLIENT_TASKS_MAX:
            del owners[next(iter(owners))]
        return replace(self, owners=owners)

    def check(self, backend: str, params: Raw) -> None:
        """Refusal (-32602) for a request of a backend about a task that is not its own. Raises Malformed."""
        if self.owners.get(target(params)) != backend:
            raise Refusal(unknown())

    def owner(self, params: Raw) -> str | None:
        """The backend to which a client's `notifications/tasks/status` goes; None: to nobody. Raises Malformed."""
        return self.owners.get(text_or_none(members(params).get("taskId")) or "")


NO_TASKS: Final = ClientTasks()


def created(result: Raw) -> str | None:
    """The id of the task that a result says was made; None if it says no such thing."""
    try:
        task = members(result).get("task", EMPTY)
        return text_or_none(members(task).get("taskId")) if is_object(task) else None
    except Malformed:
        return None


_RELATED = RELATED_TASK_KEY.encode()


def mentions_task(holder: Raw) -> bool:
    """Whether params or a result may say in their `_meta` which task they belong to; a quick look at their bytes."""
    return mentions(holder, _RELATED)


def related_task(holder: Raw) -> str | None:
    """The task that params or a result belong to, by their `_meta`; None if they name none."""
    if not mentions_task(holder):
        return None
    try:
        related = members(meta_of(holder)).get(RELATED_TASK_KEY, EMPTY)
        return text_or_none(members(related).get("taskId")) if is_object(related) else None
    except Malformed:
        return None


def relating(holder: Raw, task: str) -> Raw:
    """Params or a result of this task, which say so. Raises Malformed."""
    if related_task(holder) == task:
        return holder
    return replace_members(holder, {"_meta": dumps({**members(meta_of(holder)), RELATED_TASK_KEY: {"taskId": task}})})


def subject(params: Raw) -> str | None:
    """The task that a notification is about, or belongs to; None: none."""
    try:
        return target(params)
    except (Malformed, Refusal):
        return related_task(params)


def unrelated(holder: Raw) -> Raw:
    """Params or a result without the task that they belong to, for an end that knows of no task."""
    if not mentions_task(holder):
        return holder
    try:
        keys = {key: value for key, value in members(meta_of(holder)).items() if key != RELATED_TASK_KEY}
        return replace_members(holder, {"_meta": dumps(keys) if keys else None})
    except Malformed:
        return holder


def untasked(tool: Raw) -> Raw:
    """A tool of a list for whoever can't have it as a task: without what says that it can be one, or must."""
    if not mentions(tool, b"taskSupport"):
        return tool
    try:
        return replace_members(tool, {"execution": None})
    except Malformed:
        return tool


# Ids in payloads --------------------------------------------------------------------------------------------


def params_renamed(method: str, params: Raw, rename: Rename) -> Raw:
    """The params of a request or notification with the ids of its tasks renamed: the one that it is about, and the one
    that it belongs to; one that is about a task need not say that it belongs to it (tasks, "Associating Task-Related
    Messages"). `rename` may raise Refusal. Raises Malformed."""
    return _renamed(params, rename, own=method in _IN_PARAMS, made=False)


def result_renamed(method: str, result: Raw, rename: Rename) -> Raw:
    """The result of a request of this method, likewise; also the task that was made instead of it."""
    return _renamed(result, rename, own=method in _IN_RESULT, made=method in AUGMENTED)


def _renamed(payload: Raw, rename: Rename, *, own: bool, made: bool) -> Raw:
    if not payload or not mentions(payload, b"taskId"):
        return payload
    present = members(payload)
    changes: dict[str, Raw | None] = {}
    if own and "taskId" in present:
        changes["taskId"] = _id(present["taskId"], rename)
    if made and is_object(present.get("task", EMPTY)) and "taskId" in members(present["task"]):
        task = members(present["task"])
        changes["task"] = dumps({**task, "taskId": _id(task["taskId"], rename)})
    meta = members(meta_of(payload))
    related = meta.get(RELATED_TASK_KEY, EMPTY)
    if own and RELATED_TASK_KEY in meta:
        kept = {key: value for key, value in meta.items() if key != RELATED_TASK_KEY}
        changes["_meta"] = dumps(kept) if kept else None
    elif is_object(related) and "taskId" in members(related):
        new = {**members(related), "taskId": _id(members(related)["taskId"], rename)}
        changes["_meta"] = dumps({**meta, RELATED_TASK_KEY: dumps(new)})
    return replace_members(payload, changes) if changes else payload


def _id(raw: Raw, rename: Rename) -> Raw:
    task = text_or_none(raw)
    return raw if task is None else dumps(rename(task))
