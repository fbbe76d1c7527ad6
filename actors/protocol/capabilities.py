"""What each end declared, and what may be sent because of it.

Capability objects are open sets: whatever shape a peer gives them is read leniently, unknown members are kept, and
nothing here ever fails. A member that is present counts, even `{}`; only `listChanged` and `subscribe` are booleans.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors.protocol.errors import BROKEN, Malformed, ProtocolError, invalid_params, method_not_found
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS, Method, Path
from actors.protocol.payload import KEPT_BYTES, KEPT_MAX, dumps, loads, members, mentions, text_or_none
from actors.protocol.versions import LATEST_HANDSHAKE, can_use

_FLAGS: Final = frozenset({"listChanged", "subscribe"})
_FORM: Final = ("elicitation", "form")


class Capabilities(Struct, frozen=True):
    """A capability object, as it was declared and as it is read."""

    raw: Raw = EMPTY
    tree: dict[str, Any] = {}

    def has(self, path: Path) -> bool:
        """Whether the member at this path was declared. `elicitation` without a mode means form."""
        if path == _FORM and not self.has(("elicitation", "url")):
            path = ("elicitation",)
        node: Any = self.tree
        for name in path:
            node = node.get(name) if isinstance(node, dict) else None
            if node is None or node is False:
                return False
        return node is True or path[-1] not in _FLAGS


NOTHING: Final = Capabilities()

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, rising (server/utilities/logging; RFC 5424)."""
LEVEL_CHARS: Final = 128
"""Of a level that only a server knows: a longer one is not remembered."""


class _Leveled(Struct):
    level: str = ""


def level_of(params: Raw) -> str:
    """The log level that params name, of the protocol or not; "" if there is none, or none that is remembered."""
    try:
        level = msgspec.json.decode(params, type=_Leveled).level if params else ""
    except BROKEN:
        return ""
    return level if len(level) <= LEVEL_CHARS else ""


def parse(raw: Raw) -> Capabilities:
    """The capabilities in raw JSON; anything but an object declares nothing."""
    if not raw:
        return NOTHING
    try:
        tree = loads(raw)
    except Malformed:
        return NOTHING
    return Capabilities(raw, tree) if isinstance(tree, dict) else NOTHING


def kept(raw: Raw) -> Capabilities:
    """The same, to outlive the message (`payload.kept`)."""
    return _kept(bytes(raw)) if len(raw) <= KEPT_BYTES else parse(Raw(bytes(raw)))


@lru_cache(KEPT_MAX)
def _kept(raw: bytes) -> Capabilities:
    return parse(Raw(raw))


def of_initialize_result(result: Raw) -> Capabilities:
    """What a server declared in its answer to `initialize`."""
    try:
        return parse(members(result).get("capabilities", EMPTY))
    except Malformed:
        return NOTHING


def allows(capabilities: Capabilities, method: Method | str, version: str = LATEST_HANDSHAKE) -> bool:
    """Whether a method may be sent, given what the end that its gate concerns has declared.

    For a method that needs a server's capability (`tools/call`, `notifications/message`) give the server's, for one
    that needs a client's (`roots/list`, `notifications/roots/list_changed`) the client's, whoever sends it.
    """
    row = METHODS.get(method) if isinstance(method, str) else method
    if row is None:
        return False
    if row.name == "completion/complete" and not can_use(version, "completions_capability"):
        return True  # The method is older than its capability: such a server can only be asked.
    path = row.server_capability or row.client_capability
    return path is None or capabilities.has(path)


# ---------------------------------------------------------------------------------------------- what a client can do

ClientBits: TypeAlias = frozenset[str]
"""What a client can be asked for, in words that mean the same in every revision: `roots`, `sampling`,
`sampling.tools`, `sampling.context`, `elicit.form`, `elicit.url`, `ext:<id>=<settings as canonical JSON>`."""

_BITS: Final[dict[str, tuple[Path, str | None]]] = {
    "roots": (("roots",), None),
    "sampling": (("sampling",), None),
    "sampling.tools": (("sampling", "tools"), "sampling_tools"),
    # A client of an older revision may ignore `includeContext`, so for it this is not a bit.
    "sampling.context": (("sampling", "context"), "sampling_context"),
    "elicit.form": (_FORM, "elicitation"),
    "elicit.url": (("elicitation", "url"), "url_elicitation"),
}
"""What must be declared for each, and the feature that the revision must have."""
_EXTENSION_ID: Final = re.compile(r"[A-Za-z0-9._/-]{1,128}")
_EXTENSION_MAX: Final = 4096
"""Bytes of one extension's settings: they are part of a key. More counts as not declared."""
EXTENSIONS_MAX: Final = 64
"""Extensions that are looked at."""
EXTENSIONS_BYTES: Final = 16 * 1024
"""Of the settings of all of them; the same."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


_KNOWN: Final = 512
_KNOWN_BYTES: Final = 1024
"""Declarations that are remembered, and the size of each: modern clients say the same with each request."""


def short(bits: ClientBits) -> bool:
    """Whether what is made of these bits may be remembered by them."""
    return sum(map(len, bits)) <= _KNOWN_BYTES


def declared(raw: bytes, version: str, extensions: frozenset[str] | None = None) -> tuple[Capabilities, ClientBits]:
    """A client's capabilities and its bits, as `parse` and `client_bits` have them, from memory if it is short."""
    return (_declared if len(raw) <= _KNOWN_BYTES else _declared.__wrapped__)(raw, version, extensions)


@lru_cache(_KNOWN)
def _declared(raw: bytes, version: str, extensions: frozenset[str] | None) -> tuple[Capabilities, ClientBits]:
    client = parse(Raw(raw))
    return client, _bits(client, version, extensions)


def client_bits(declared: Raw, version: str, extensions: Collection[str] | None = None) -> ClientBits:
    """The bits of a client that declared this and negotiated this revision; `extensions` are the ids let through
    (None: all)."""
    return _bits(parse(declared), version, extensions)


def _bits(client: Capabilities, version: str, extensions: Collection[str] | None) -> ClientBits:
    bits = set()
    for bit, (path, feature) in _BITS.items():
        # Without modes, any declaration of elicitation means form.
        any_mode = path[0] == "elicitation" and not can_use(version, "elicitation_modes")
        if client.has(path[:1] if any_mode else path) and (feature is None or can_use(version, feature)):
            bits.add(bit)
    named = client.tree.get("extensions")
    if isinstance(named, dict):
        left = EXTENSIONS_BYTES
        for id, settings in islice(named.items(), EXTENSIONS_MAX):
            if _EXTENSION_ID.fullmatch(id) and (extensions is None or id in extensions):
                bit = f"ext:{id}={(canonical := _encode_sorted(settings)).decode()}"
                if len(canonical) <= _EXTENSION_MAX and len(bit) <= left:
                    bits.add(bit)
                    left -= len(bit)
    return frozenset(bits)


def bits_key(bits: ClientBits) -> str:
    """The bits as one text, equal for equal bits."""
    return " ".join(sorted(bits))


def client_refusal(bits: ClientBits, method: str, params: Raw) -> ProtocolError | None:
    """Why a backend may not ask this of the client; None if it may."""
    if method == "sampling/createMessage" and "sampling" in bits:
        wants_tools = mentions(params, b"tools", b"toolChoice") and {"tools", "toolChoice"} & members(params).keys()
        undeclared = wants_tools and "sampling.tools" not in bits
        return invalid_params("the client did not declare sampling.tools") if undeclared else None
    if method == "elicitation/create" and bits & {"elicit.form", "elicit.url"}:
        mode = text_or_none(members(params).get("mode")) or "form"
        return None if f"elicit.{mode}" in bits else invalid_params(f"the client did not declare elicitation.{mode}")
    if method == "ping" or (method == "roots/list" and "roots" in bits):
        return None
    return method_not_found(method)


def declare(bits: ClientBits, version: str = LATEST_HANDSHAKE, *, roots_list_changed: bool = False) -> Raw:
    """The capabilities to declare to a backend that is offered this revision."""
    return (_declare if short(bits) else _declare.__wrapped__)(bits, version, roots_list_changed)


@lru_cache(_KNOWN)
def _declare(bits: ClientBits, version: str, roots_list_changed: bool) -> Raw:
    modes = can_use(version, "elicitation_modes")
    tree: dict[str, Any] = {}
    if "roots" in bits:
        tree["roots"] = {"listChanged": True} if roots_list_changed else {}
    if "sampling" in bits:
        parts = ("tools", "context") if can_use(version, "sampling_tools") else ()
        tree["sampling"] = {part: {} for part in parts if f"sampling.{part}" in bits}
    if modes and bits & {"elicit.form", "elicit.url"}:
        tree["elicitation"] = {mode: {} for mode in ("form", "url") if f"elicit.{mode}" in bits}
    elif "elicit.form" in bits and can_use(version, "elicitation"):
        tree["elicitation"] = {}
    extensions = {}
    for bit in sorted(bits):
        if bit.startswith("ext:"):
            id, _, settings = bit[4:].partition("=")
            extensions[id] = Raw(settings.encode())
    if extensions:
        tree["extensions"] = extensions
    return dumps(tree)


# ------------------------------------------------------------------------------------------ what a gateway can offer


TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension, of modern servers."""
_TASKS_BIT: Final = f"ext:{TASKS}="


_MERGED: Final = 256
_MERGED_BYTES: Final = 64 * 1024
"""Offers that are remembered, and the size of what each is made of."""


def merge_server(
    known: Iterable[Raw],
    *,
    pending: bool,
    extensions: Collection[str] = (),
    experimental: Collection[str] = (),
) -> Raw:
    """The capabilities of an aggregate: what any backend has, or, with `pending`, may have.

    A session's capabilities can't grow after its handshake, so a backend that nobody has asked yet counts as having
    everything; its lists may turn out empty. `listChanged` always, since the set of backends itself changes.
    """
    declared = tuple(map(bytes, known))
    brief = sum(map(len, declared)) <= _MERGED_BYTES
    return (_merge if brief else _merge.__wrapped__)(declared, pending, tuple(extensions), tuple(experimental))


# Each request without a session asks what its endpoint has, and that is the same until a backend says something else.
@lru_cache(_MERGED)
def _merge(known: tuple[bytes, ...], pending: bool, extensions: tuple[str, ...], experimental: tuple[str, ...]) -> Raw:
    backends = [parse(Raw(raw)) for raw in known]

    def any_has(*path: str) -> bool:
        return pending or any(backend.has(path) for backend in backends)

    tree: dict[str, Any] = {}
    for name in ("tools", "prompts", "resources"):
        if any_has(name):
            tree[name] = {"listChanged": True}
    if any_has("resources", "subscribe"):
        tree["resources"]["subscribe"] = True
    for name in ("logging", "completions"):
        if any_has(name):
            tree[name] = {}
    for name, allowed in (("extensions", extensions), ("experimental", experimental)):
        merged = _allowed(backends, name, allowed)
        if merged:
            tree[name] = merged
    return dumps(tree)


def transparent_server(raw: Raw, *, modern: bool = False) -> Raw:
    """A backend's own capabilities, without tasks; those of a `modern` one with the tasks of its era."""
    changed = (_without_tasks if len(raw) <= _KNOWN_BYTES else _without_tasks.__wrapped__)(bytes(raw), modern)
    return raw if changed is None else changed


@lru_cache(_KNOWN)
def _without_tasks(declared: bytes, modern: bool) -> Raw | None:
    """None: it has none."""
    capabilities = parse(Raw(declared))
    if not capabilities.tree:
        return dumps({})
    stripped = not modern and capabilities.has(("extensions", TASKS))
    if "tasks" not in capabilities.tree and not stripped:
        return None
    tree: dict[str, Any] = {name: value for name, value in capabilities.tree.items() if name != "tasks"}
    if stripped:
        tree["extensions"] = {id: settings for id, settings in tree["extensions"].items() if id != TASKS}
    return dumps(tree)


def transparent_client(client: Capabilities, declared: Raw, *, as_is: bool) -> Raw:
    """What the one server behind an endpoint hears of a client, of which an aggregate would declare this much: its
    `experimental` capabilities too, and `as_is` all else that it said. Tasks it can have only from the gateway:
    those of its own era as they are declared here, and never those of the other."""
    tree = client.tree if as_is else {k: v for k, v in client.tree.items() if k == "experimental"}
    ours = loads(declared)
    tree = {**({} if as_is else ours), **tree}
    tree.pop("tasks", None)
    if "tasks" in ours:
        tree["tasks"] = ours["tasks"]
    if as_is and client.has(("extensions", TASKS)):
        tree["extensions"] = {id: settings for id, settings in tree["extensions"].items() if id != TASKS}
    return dumps(tree)


def carried(bits: ClientBits) -> ClientBits:
    """What of a client a legacy backend may hear: not that it knows tasks of the other era."""
    tasks = [bit for bit in bits if bit.startswith(_TASKS_BIT)]
    return bits.difference(tasks) if tasks else bits


def tasks_declared(bits: ClientBits) -> bool:
    """Whether the extension for tasks came with a request. (Tasks of 2025-11-25, declared elsewhere, do not count.)"""
    return any(bit.startswith(_TASKS_BIT) for bit in bits)


def _allowed(backends: Iterable[Capabilities], name: str, allowed: Collection[str]) -> dict[str, Any]:
    """The allow-listed members of an open map; the first backend's settings win."""
    merged: dict[str, Any] = {}
    for backend in backends:
        declared = backend.tree.get(name)
        if isinstance(declared, dict):
            for id, settings in declared.items():
                if id in allowed:
                    merged.setdefault(id, settings)
    return merged
