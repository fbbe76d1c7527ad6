"""What a `subscriptions/listen` asks for: three kinds of changes, and single resources (2026-07-28,
patterns/subscriptions); between peers also what only they know."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol import meta, spelling
from actors.protocol import payload as json
from actors.protocol.errors import BROKEN, Malformed, Refusal, invalid_params
from actors.protocol.messages import EMPTY
from actors.protocol.methods import LIST_CHANGED, UPDATED

URIS_MAX: Final = 1024
"""Resources of one subscription, and of one session."""
URI_BYTES: Final = 8 * 1024
"""Of one of them."""
URIS_BYTES: Final = 256 * 1024
"""Of all of them."""

OTHERS_BYTES: Final = 256 * 1024
"""Of all that only the two ends of a subscription know."""

TASKS_MAX: Final = 256
"""Tasks of one subscription."""

TASK: Final = "notifications/tasks"
"""Of the extension `io.modelcontextprotocol/tasks`."""
TOOLS: Final = LIST_CHANGED["tools"]
PROMPTS: Final = LIST_CHANGED["prompts"]
RESOURCES: Final = LIST_CHANGED["resources"]
FLAGS: Final = {TOOLS: "toolsListChanged", PROMPTS: "promptsListChanged", RESOURCES: "resourcesListChanged"}
"""Notification → the member of a filter that asks for it."""


class Filter(Struct, frozen=True):
    """`changes` are the notifications of lists, `uris` the resources, `tasks` the ids of tasks; `others` are members
    that only the two ends know, with their JSON."""

    changes: frozenset[str] = frozenset()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    others: tuple[tuple[str, bytes], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it asks for nothing."""
        return not self.changes and not self.uris and not self.tasks and not self.others

    @property
    def raw(self) -> Raw:
        """The filter as the member `notifications` of a listen, or of its acknowledgement."""
        flags: dict[str, object] = {name: True for method, name in FLAGS.items() if method in self.changes}
        flags |= {"resourceSubscriptions": self.uris} if self.uris else {}
        flags |= {"taskIds": self.tasks} if self.tasks else {}
        return json.dumps({**flags, **{name: Raw(value) for name, value in self.others}})

    def within(self, able: "Filter") -> "Filter":
        """What of it somebody can do who can do that much; what only the two ends know is as `able` says."""
        uris, tasks = set(able.uris), set(able.tasks)
        return Filter(
            self.changes & able.changes,
            tuple(uri for uri in self.uris if uri in uris),
            tuple(task for task in self.tasks if task in tasks),
            able.others,
        )

    def wants(self, method: str, params: Raw) -> bool:
        """Whether a notification is one of these. An update may name a part of what was asked for."""
        if method == TASK:
            return task_of(params) in self.tasks
        if method != UPDATED:
            return method in self.changes
        uri = located(params)
        return uri is not None and any(uri.startswith(wanted) for wanted in self.uris)


class _Wire(Struct, rename="camel"):
    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None


_KNOWN: Final = spelling.Members(_Wire.__struct_encode_fields__)


class _Params(Struct):
    notifications: _Wire


def read(params: Raw, *, others: bool = False) -> Filter:
    """The filter in the params of a listen, or of an acknowledgement; `others`: with the members that nobody here
    knows, which else are left out. Raises Refusal (-32602)."""
    try:
        wire = msgspec.json.decode(params or b"{}", type=_Params).notifications
    except BROKEN as broken:
        raise Refusal(invalid_params(f"notifications: {broken}")) from None
    asked = (wire.tools_list_changed, wire.prompts_list_changed, wire.resources_list_changed)
    uris = tuple(dict.fromkeys(wire.resource_subscriptions or ()))
    sizes = [len(uri.encode()) for uri in uris]
    if len(uris) > URIS_MAX or sum(sizes) > URIS_BYTES or max(sizes, default=0) > URI_BYTES:
        raise Refusal(invalid_params("resourceSubscriptions: too many, or too long"))
    tasks = tuple(dict.fromkeys(wire.task_ids or ()))
    if len(tasks) > TASKS_MAX or sum(len(task.encode()) for task in tasks) > URIS_BYTES:
        raise Refusal(invalid_params("taskIds: too many, or too long"))
    changes = frozenset(method for method, on in zip(FLAGS, asked, strict=True) if on)
    return Filter(changes, uris, tasks, _others(params) if others else ())


def _others(params: Raw) -> tuple[tuple[str, bytes], ...]:
    try:
        found = json.members(json.members(params)["notifications"])
        spelling.check(found, _KNOWN)
    except Malformed as malformed:
        raise Refusal(malformed.error) from None
    others = tuple((name, bytes(value)) for name, value in found.items() if name not in _KNOWN)
    if sum(len(name.encode()) + len(value) for name, value in others) > OTHERS_BYTES:
        raise Refusal(invalid_params("notifications: too long"))
    return others


TRACE_KEYS: Final = frozenset({"traceparent", "tracestate", "baggage"})
"""Of W3C trace context in `_meta`: they are another value each time, and ask the server for nothing."""


def beside(params: Raw) -> Raw:
    """What only the two ends know of the params of a listen; EMPTY: nothing. Raises Refusal (-32602). Trace context is
    left out: with it every listen would have a subscription of its own at the server."""
    try:
        present = json.members(params)
        spelling.check(present)
        foreign = {k: v for k, v in meta.members_of(present).items() if k not in meta.OWN_KEYS | TRACE_KEYS}
    except Malformed as malformed:
        raise Refusal(malformed.error) from None
    del present["notifications"]
    present.pop("_meta", None)
    if foreign:
        present["_meta"] = json.dumps(foreign)
    if sum(len(name.encode()) + len(value) for name, value in present.items()) > OTHERS_BYTES:
        raise Refusal(invalid_params("params: too long"))
    return json.dumps(present) if present else EMPTY


class _Task(Struct, rename="camel"):
    task_id: str


def task_of(params: Raw) -> str | None:
    """The task that params name."""
    try:
        return msgspec.json.decode(params or EMPTY, type=_Task).task_id
    except BROKEN:
        return None


class _Located(Struct):
    uri: str


def located(params: Raw) -> str | None:
    """The URI that params name."""
    try:
        return msgspec.json.decode(params or EMPTY, type=_Located).uri
    except BROKEN:
        return None
