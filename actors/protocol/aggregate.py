"""Names and URIs in messages that cross an aggregated route, in both directions.

Out to the client every name and URI of a backend becomes its exposed form, on the way in it becomes the backend's
again. Only the members that hold one are touched: never free text, structured content or
the client's roots. A payload of an unexpected shape passes as it is.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from msgspec import Raw, Struct

from actors.protocol.errors import Malformed, ProtocolError, Refusal, invalid_params, resource_not_found
from actors.protocol.filter import TASK
from actors.protocol.messages import EMPTY
from actors.protocol.methods import UPDATED
from actors.protocol.naming import Names, Uris, name_prefix
from actors.protocol.payload import (
    dumps,
    elements,
    is_object,
    loads,
    members,
    mentions,
    replace_members,
    text,
    text_or_none,
)


class Naming(Struct, frozen=True):
    """The tables by which one endpoint names what its servers have."""

    tools: Names = Names()
    prompts: Names = Names()
    uris: Uris = Uris()


class Unlisted(Refusal):
    """A name that is on no list that is known. `backend` is the one that it must be of, if there is one, and `bare` the
    name without that one's prefix."""

    def __init__(self, error: ProtocolError, names: Names, name: str) -> None:
        super().__init__(error)
        self.backend = names.prefixes.owner(name)
        self.bare = name if self.backend is None else name.removeprefix(names.prefixes.by_backend[self.backend].plain)


class Routed(NamedTuple):
    """Which backend a request goes to, its params in the backend's own words, and the thing they name."""

    backend: str
    params: Raw
    name: str


# ------------------------------------------------------------------------------------------------ client → backend


def resolve(method: str, params: Raw, naming: Naming) -> Routed:
    """Where a routed request goes. Raises Refusal: unknown tool, prompt or ref -32602, unknown resource -32002."""
    if method == "completion/complete":
        return _resolve_ref(params, naming)
    kind = _NAMED.get(method)
    present, member = members(params), "uri" if kind is None else "name"
    if member not in present:
        raise Refusal(invalid_params(f"{member} is missing"))
    name = text(present[member])
    if kind is None:
        owner = naming.uris.resolve(name)
        if owner is None:
            raise Refusal(resource_not_found(name))
    else:
        names = naming.tools if kind == "tool" else naming.prompts
        owner = names.owners.get(name)
        if owner is None:
            raise Unlisted(invalid_params(f"Unknown {kind}: {name[:200]}"), names, name)
    theirs = params if name == owner.name else dumps({**present, member: owner.name})
    return Routed(owner.backend, theirs, owner.name)


_NAMED: Final = {"tools/call": "tool", "prompts/get": "prompt"}
"""What the `name` of a request is of; any other names a URI."""


def resolve_bare(params: Raw, names: Names) -> Routed | None:
    """Where a tool call goes that names the tool as its backend does, as the page of an app has to. None if no backend
    has such a tool; raises Refusal if several have."""
    name = _required(members(params), "name")
    found = names.namesakes(name)
    if len(found) > 1:
        raise Refusal(invalid_params(f"Several servers have a tool {name[:200]}: {', '.join(found)}"))
    return Routed(names.owners[found[0]].backend, params, name) if found else None


def _resolve_ref(params: Raw, naming: Naming) -> Routed:
    present = members(params)
    ref = members(present.get("ref", Raw(b"{}")))
    kind = text_or_none(ref.get("type"))
    if kind == "ref/prompt":
        member, name = "name", _required(ref, "name")
        owner = naming.prompts.resolve(name)
    elif kind == "ref/resource":
        member, name = "uri", _required(ref, "uri")
        owner = naming.uris.resolve(name)
    else:
        raise Refusal(invalid_params("Unknown type of ref"))
    if owner is None:
        unknown = invalid_params(f"Unknown ref: {name[:200]}")
        raise Unlisted(unknown, naming.prompts, name) if kind == "ref/prompt" else Refusal(unknown)
    ref[member] = dumps(owner.name)
    return Routed(owner.backend, dumps({**present, "ref": dumps(ref)}), owner.name)


def _required(present: dict[str, Raw], member: str) -> str:
    if member not in present:
        raise Refusal(invalid_params(f"{member} is missing"))
    return text(present[member])


# ------------------------------------------------------------------------------------------------ backend → client


def expose_items(method: str, backend: str, items: Iterable[Raw], naming: Naming) -> list[Raw]:
    """The items of a backend's list as the merged list shows them; one that the tables don't name is left out."""
    expose = _ITEMS[method]
    exposed = (expose(item, backend, naming) for item in items)
    return [item for item in exposed if item is not None]


def expose_result(method: str, backend: str, result: Raw, naming: Naming) -> Raw:
    """A backend's result: URIs of resources, upstream connections and embedded resources. The same object if there
    is none."""
    names = NAMES_IN_RESULTS.get(method)
    if names is None or not mentions(result, *names):
        return result
    return _lenient(_RESULTS[method], result, backend, naming)


def expose_request(method: str, backend: str, params: Raw, naming: Naming) -> Raw:
    """The params of a backend's own request: resources in sampling messages, and in elicitation who it is that asks,
    since the client sees but the gateway (elicitation, "Security Considerations")."""
    if method == "elicitation/create":
        return _lenient(_labelled, params, backend, naming)
    if method == "sampling/createMessage" and mentions(params, b'"resource'):
        return _lenient(_messages, params, backend, naming)
    return params


def expose_notification(method: str, backend: str, params: Raw, naming: Naming) -> Raw:
    """The params of a backend's notification: the URI of `updated` (which may name a part of what was subscribed to),
    the result of a task, and the logger of log messages."""
    if method == UPDATED:
        return _lenient(_uri, params, backend, naming)
    if method == TASK and mentions(params, *NAMES_IN_RESULTS["tasks/get"]):
        return _lenient(_task, params, backend, naming)
    if method == "notifications/message":
        return _lenient(_logger, params, backend, naming)
    return params


def expose_error(backend: str, error: Raw, naming: Naming) -> Raw:
    """A backend's error: `data.uri`."""
    return _lenient(_error, error, backend, naming) if mentions(error, b'"uri"') else error


_Expose = Callable[[Raw, str, Naming], Raw]


def _lenient(expose: _Expose, payload: Raw, backend: str, naming: Naming) -> Raw:
    try:
        return expose(payload, backend, naming)
    except Malformed:
        return payload


def _uri(holder: Raw, backend: str, naming: Naming) -> Raw:
    return _with_uri(holder, "uri", backend, naming)


def _with_uri(holder: Raw, member: str, backend: str, naming: Naming) -> Raw:
    uri = text_or_none(members(holder).get(member))
    return holder if uri is None else replace_members(holder, {member: dumps(naming.uris.expose(backend, uri))})


# Items ---------------------------------------------------------------------------------------------------------------


def _tool(item: Raw, backend: str, naming: Naming) -> Raw | None:
    named = _named(item, backend, naming.tools)
    return named if named is None else _app_page(named, backend, naming)


def _named(item: Raw, backend: str, names: Names) -> Raw | None:
    exposed = names.expose(backend, item_name(item) or "")
    return None if exposed is None else replace_members(item, {"name": dumps(exposed)})


def item_name(item: Raw, member: str = "name") -> str | None:
    """The name (or `uri`, `uriTemplate`) of a list's item; None if it has none."""
    try:
        return text_or_none(members(item).get(member))
    except Malformed:
        return None


def annotations_of(tools: Iterable[Raw], name: str) -> Any:
    """The annotations of one tool of a list; None: it is not on it, or has none."""
    tool = next((tool for tool in tools if item_name(tool) == name), None)
    try:
        said = members(tool).get("annotations") if tool is not None else None
        return loads(said) if said is not None else None
    except Malformed:
        return None


def _located(member: str) -> Callable[[Raw, str, Naming], Raw | None]:
    def expose(item: Raw, backend: str, naming: Naming) -> Raw | None:
        return None if item_name(item, member) is None else _with_uri(item, member, backend, naming)

    return expose


_ITEMS: Final[dict[str, Callable[[Raw, str, Naming], Raw | None]]] = {
    "tools/list": _tool,
    "prompts/list": lambda item, backend, naming: _named(item, backend, naming.prompts),
    "resources/list": _located("uri"),
    "resources/templates/list": _located("uriTemplate"),
}


_PAGE: Final = ("ui/resourceUri", "openai/outputTemplate")
"""Members of `_meta` that name a tool's page: that of the Apps SDK, and that of MCP Apps before it was
`ui.resourceUri`."""
_PAGE_WORDS: Final = (b"resourceUri", b"outputTemplate")


def _app_page(holder: Raw, backend: str, naming: Naming) -> Raw:
    """Where the page of a tool is named, it is by the client's name of that resource."""
    if not mentions(holder, *_PAGE_WORDS):
        return holder
    present = members(holder)
    try:
        meta = members(present.get("_meta", Raw(b"{}")))
        if "ui" in meta and is_object(meta["ui"]):
            meta["ui"] = _with_uri(meta["ui"], "resourceUri", backend, naming)
    except Malformed:
        return holder
    for key in _PAGE:
        if (page := text_or_none(meta.get(key))) is not None:
            meta[key] = dumps(naming.uris.expose(backend, page))
    return replace_members(holder, {"_meta": dumps(meta)}) if meta else holder


# Results and requests ------------------------------------------------------------------------------------------------


def _tool_result(result: Raw, backend: str, naming: Naming) -> Raw:
    present = members(result)
    if "content" in present:
        present["content"] = _blocks(present["content"], backend, naming, nested=False)
    return _app_page(dumps(present), backend, naming)


def _read_result(result: Raw, backend: str, naming: Naming) -> Raw:
    present = members(result)
    if "contents" in present:
        present["contents"] = dumps([_uri(part, backend, naming) for part in elements(present["contents"])])
    return dumps(present)


def _messages(holder: Raw, backend: str, naming: Naming) -> Raw:
    present = members(holder)
    messages = [members(message) for message in elements(present.get("messages", Raw(b"[]")))]
    for message in messages:
        if "content" in message:
            message["content"] = _blocks(message["content"], backend, naming, nested=False)
    present["messages"] = dumps(messages)
    return dumps(present)


def _task(task: Raw, backend: str, naming: Naming) -> Raw:
    """A task of 2026-07-28 has the result of its tool inside."""
    result = members(task).get("result", EMPTY)
    return replace_members(task, {"result": _tool_result(result, backend, naming)}) if is_object(result) else task


_RESULTS: Final[dict[str, _Expose]] = {
    "tools/call": _tool_result,
    "tasks/get": _task,
    "prompts/get": _messages,
    "resources/read": _read_result,
}
NAMES_IN_RESULTS: Final[dict[str, tuple[bytes, ...]]] = {
    "tools/call": (b'"resource', *_PAGE_WORDS),
    "tasks/get": (b'"resource', *_PAGE_WORDS),
    "prompts/get": (b'"resource',),
    "resources/read": (b'"uri"',),
}
"""Without one of these in its bytes, the result of such a request has nothing to expose."""


def _blocks(content: Raw, backend: str, naming: Naming, *, nested: bool) -> Raw:
    """One block or an array of blocks. Results of tools within sampling hold blocks once more, but no deeper."""
    if is_object(content):
        return _block(content, backend, naming, nested=nested)
    return dumps([_block(block, backend, naming, nested=nested) for block in elements(content)])


def _block(block: Raw, backend: str, naming: Naming, *, nested: bool) -> Raw:
    present = members(block)
    kind = text_or_none(present.get("type"))
    if kind == "resource_link":
        return _uri(block, backend, naming)
    if kind == "resource" and "resource" in present:
        return replace_members(block, {"resource": _uri(present["resource"], backend, naming)})
    if kind == "tool_result" and "content" in present and not nested:
        return replace_members(block, {"content": _blocks(present["content"], backend, naming, nested=True)})
    return block


def _labelled(params: Raw, backend: str, naming: Naming) -> Raw:
    message = text_or_none(members(params).get("message"))
    return params if message is None else replace_members(params, {"message": dumps(f"[{backend}] {message}")})


def _logger(params: Raw, backend: str, naming: Naming) -> Raw:
    logger = text_or_none(members(params).get("logger"))
    return replace_members(params, {"logger": dumps(f"{backend}/{logger}" if logger else backend)})


def _error(error: Raw, backend: str, naming: Naming) -> Raw:
    data = members(error).get("data")
    return (
        error if data is None or not is_object(data) else replace_members(error, {"data": _uri(data, backend, naming)})
    )


# -------------------------------------------------------------------------------------------------------- instructions

INSTRUCTIONS_MAX: Final = 16_384
"""Characters of merged instructions: they go into the context of a model with each session."""
# Control characters, zero-width and direction marks, and the tag block, in which text can hide from people.
_INVISIBLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


def merge_instructions(
    parts: Iterable[tuple[str, str]],
    separator: str = "__",
    limit: int = INSTRUCTIONS_MAX,
    backends: Iterable[str] = (),
) -> str | None:
    """One text of (backend, instructions), each below a heading that gives the prefix of its names; None of nothing.
    `backends` are all that are configured: prefixes depend on them.

    What backends say is untrusted: invisible characters go, headings inside are pushed below ours, and each gets an
    equal share of the limit.
    """
    present = [(backend, text.strip()) for backend, text in parts if text.strip()]
    if not present:
        return None
    share, configured = limit // len(present), tuple(backends)
    prefixed = [(backend, name_prefix(backend, separator, configured), text) for backend, text in present]
    return "\n\n".join(_section(*section, share) for section in prefixed)


def _section(backend: str, prefix: str, text: str, share: int) -> str:
    heading = f"# {backend}\n(names of this server begin with `{prefix}`)\n\n"
    clean = re.sub(r"^#", "##", _INVISIBLE.sub("", text), flags=re.MULTILINE)
    room = max(0, share - len(heading) - 2)
    return heading + (clean if len(clean) <= room else clean[: max(0, room - 1)] + "…")
