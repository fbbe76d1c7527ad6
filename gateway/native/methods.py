"""The requests that a server answers, in one table, and how each is done."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from msgspec import Raw

from actors.protocol import codec
from actors.protocol.capabilities import LEVELS
from actors.protocol.codec import Malformed
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.versions import negotiate
from actors.runtime.boundary import Boundary
from gateway.native import failures
from gateway.native.context import Client, Context
from gateway.native.definitions import ResourceInfo
from gateway.native.errors import BadValuesError, NotFoundError, cut, invalid_params
from gateway.native.prompts import completion_result
from gateway.native.request import Request
from gateway.native.resources import read_result
from gateway.native.revisions import fit

if TYPE_CHECKING:
    from gateway.native.session import Session

_NULL: Final = Raw(b"null")
_UNEXECUTED: Final = {"executed": "no"}
"""The data of an error by which a request is refused before any handler has run."""

SUBSCRIPTIONS: Final = 1000
"""Resources that one session may subscribe to."""

Params: TypeAlias = Mapping[str, Raw]


class AtOnce(NamedTuple):
    """A request that runs no handler: it is answered before the next message is read, so that a subscription and its
    end, or two log levels, take effect in the order they came. `needs` is what the session must offer for it."""

    needs: str
    do: Callable[["Session", Params], Mapping[str, Any]]


class InTask(NamedTuple):
    """A request that runs a handler, beside all others."""

    needs: str
    do: Callable[["Session", Context, Params], Awaitable[Mapping[str, Any]]]


class Described(Protocol):
    """Has an entry in a list."""

    def describe(self, version: str) -> dict[str, Any]: ...


def initialize(session: "Session", params: Params) -> dict[str, Any]:
    """The handshake (lifecycle, "Initialization"): what the server has at this moment is what it offers."""
    version = negotiate(_text(params, "protocolVersion"))
    info, capabilities = _object(params, "clientInfo"), _object(params, "capabilities")
    server = session.server
    if server.make_state:
        session.state = server.make_state()
    client = Client(str(info.get("name", "")), str(info.get("version", "")), info.get("title"), version, capabilities)
    session.opened(client, server.offers())
    result = {
        "protocolVersion": version,
        "capabilities": fit("capabilities", _capabilities(session.offers), version),
        "serverInfo": fit("implementation", server.info, version),
    }
    return result | ({"instructions": server.instructions} if server.instructions else {})


def _capabilities(offers: Iterable[str]) -> dict[str, Any]:
    lists = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}}
    every = lists | {"resources": {"subscribe": True, "listChanged": True}, "completions": {}, "logging": {}}
    return {name: value for name, value in every.items() if name in offers}


def ping(_: "Session", __: Params) -> dict[str, Any]:
    """`ping`, in any phase."""
    return {}


# Tools --------------------------------------------------------------------------------------------------------


def list_tools(session: "Session", params: Params) -> dict[str, Any]:
    """`tools/list`."""
    return _page(session, params, "tools", session.server.tools.values())


async def call_tool(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`tools/call`: an unknown tool is a wrong request, wrong values are for the model to read."""
    name = _text(params, "name")
    tool = session.server.tools.get(name)
    if tool is None:
        raise invalid_params(f"Unknown tool: {cut(name)}", _UNEXECUTED)
    raw = bytes(_raw_object(params, "arguments"))
    arguments = tool.arguments.parse_exactly(raw)
    value = await tool.handler(Request(context, tool=name, given=raw), arguments, session.server.threads)
    return tool.result(value, context.client.revision)


# Resources ----------------------------------------------------------------------------------------------------


async def list_resources(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`resources/list`: the fixed ones, then those that templates list for this session."""
    server = session.server
    listed: list[ResourceInfo] = [resource.info for resource in server.resources.values()]
    for template in server.templates.values():
        if template.listing:
            listed.extend(await template.listing(Request(context), {}, server.threads))
    return _page(session, params, "resources", listed)


def list_templates(session: "Session", params: Params) -> dict[str, Any]:
    """`resources/templates/list`."""
    return _page(session, params, "resourceTemplates", session.server.templates.values())


async def read_resource(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`resources/read`: a resource by its URI, else the first template that matches."""
    uri, server = _text(params, "uri"), session.server
    resource = server.resources.get(uri)
    if resource:
        request = Request(context, resource=resource.info.name, uri=uri)
        return read_result(uri, resource.info.mime_type, await resource.handler(request, {}, server.threads))
    for template in server.templates.values():
        variables = template.uri.match(uri)
        if variables is None:
            continue
        try:
            values = template.arguments.check(variables)
        except BadValuesError:
            continue
        request = Request(context, resource=template.name, uri=uri, uri_template=template.uri.text, given=variables)
        return read_result(uri, template.mime_type, await template.handler(request, values, server.threads))
    raise NotFoundError(uri)


def subscribe(session: "Session", params: Params) -> dict[str, Any]:
    """`resources/subscribe`, for what could be read."""
    uri, server = _text(params, "uri"), session.server
    resource = server.resources.get(uri)
    if resource is None and all(t.uri.match(uri) is None for t in server.templates.values()):
        raise NotFoundError(uri)
    if len(session.subscriptions) >= SUBSCRIPTIONS:
        raise invalid_params(f"No more than {SUBSCRIPTIONS} subscriptions")
    session.subscribe(uri, resource.every if resource else None)
    return {}


def unsubscribe(session: "Session", params: Params) -> dict[str, Any]:
    """`resources/unsubscribe`."""
    session.unsubscribe(_text(params, "uri"))
    return {}


# Prompts, completion, logging ---------------------------------------------------------------------------------


def list_prompts(session: "Session", params: Params) -> dict[str, Any]:
    """`prompts/list`."""
    return _page(session, params, "prompts", session.server.prompts.values())


async def get_prompt(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`prompts/get`: an unknown name, a missing or a wrong argument is a wrong request."""
    name = _text(params, "name")
    prompt = session.server.prompts.get(name)
    if prompt is None:
        raise invalid_params(f"Unknown prompt: {cut(name)}", _UNEXECUTED)
    raw = bytes(_raw_object(params, "arguments"))
    try:
        arguments = prompt.arguments.parse(raw)
    except BadValuesError as error:
        raise invalid_params(str(error), _UNEXECUTED) from None
    value = await prompt.handler(Request(context, prompt=name, given=raw), arguments, session.server.threads)
    return prompt.result(value, context.client.revision)


async def complete(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`completion/complete`: no values where nobody completes the argument, an error where there is none."""
    reference, argument = _object(params, "ref"), _object(params, "argument")
    name, typed = argument.get("name"), argument.get("value")
    if not isinstance(name, str) or not isinstance(typed, str):
        raise invalid_params("The argument needs a name and a value")
    completer = session.server.completer(reference, name)
    if completer is None:
        return completion_result([])
    others = _object(params, "context").get("arguments") or {}
    return completion_result(await completer(context, typed, others, session.server.threads))


def set_level(session: "Session", params: Params) -> dict[str, Any]:
    """`logging/setLevel`, for the whole session."""
    name = _text(params, "level")
    level = next((level for level in LEVELS if level == name), None)
    if level is None:
        raise invalid_params(f"Unknown level: {cut(name)}", _UNEXECUTED)
    session.level = level
    return {}


METHODS: Final[Mapping[str, AtOnce | InTask]] = {
    "initialize": AtOnce("", initialize),
    "ping": AtOnce("", ping),
    "tools/list": AtOnce("tools", list_tools),
    "tools/call": InTask("tools", call_tool),
    "resources/list": InTask("resources", list_resources),
    "resources/templates/list": AtOnce("resources", list_templates),
    "resources/read": InTask("resources", read_resource),
    "resources/subscribe": AtOnce("resources", subscribe),
    "resources/unsubscribe": AtOnce("resources", unsubscribe),
    "prompts/list": AtOnce("prompts", list_prompts),
    "prompts/get": InTask("prompts", get_prompt),
    "completion/complete": InTask("completions", complete),
    "logging/setLevel": AtOnce("logging", set_level),
}


def cancelled_id(params: Raw) -> RequestId | None:
    """The request that a `notifications/cancelled` names, if it names one."""
    try:
        id = codec.loads(codec.members(params).get("requestId", EMPTY))
    except Malformed:
        return None
    return id if isinstance(id, (int, str)) and not isinstance(id, bool) else None


# Params and pages ---------------------------------------------------------------------------------------------


def _text(params: Params, name: str) -> str:
    if name not in params:
        raise invalid_params(f"{name} is missing")
    return codec.text(params[name])


def _raw_object(params: Params, name: str) -> Raw:
    raw = params.get(name, EMPTY)
    if not raw or bytes(raw) == b"null":
        return Raw(b"{}")
    if bytes(raw)[:1] != b"{":
        raise invalid_params(f"{name} must be an object")
    return raw


def _object(params: Params, name: str) -> dict[str, Any]:
    value: dict[str, Any] = codec.loads(_raw_object(params, name))
    return value


def _page(session: "Session", params: Params, name: str, every: Iterable[Described]) -> dict[str, Any]:
    """One page of a list. A cursor names the list and the place in it; it is not kept, so it never expires."""
    size, entries = session.server.page_size, list(every)
    start = _start(name, params["cursor"]) if params.get("cursor", _NULL) != _NULL else 0
    page = {name: _described(session, f"{name}/list", entries[start : start + size])}
    following = urlsafe_b64encode(f"{name}:{start + size}".encode()).decode()
    return page | ({"nextCursor": following} if start + size < len(entries) else {})


def _described(session: "Session", method: str, entries: Iterable[Described]) -> list[dict[str, Any]]:
    """Without those whose own functions can't say what they are: they would take the others with them."""
    described: list[dict[str, Any]] = []
    for entry in entries:
        with Boundary(on_exit=partial(session.undescribed, method)), failures.no_exit():
            described.append(entry.describe(session.client.revision))
    return described


def _start(name: str, cursor: Raw) -> int:
    try:
        kind, _, place = urlsafe_b64decode(codec.text(cursor)).decode().partition(":")
        start = int(place)
    except (ValueError, BadBase64) as error:
        raise invalid_params("This cursor is not one of ours") from error
    if kind != name or start <= 0:
        raise invalid_params("This cursor belongs to another list")
    return start
