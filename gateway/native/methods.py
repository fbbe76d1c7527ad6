"""The requests that a server answers, in one table, and how each is done."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from msgspec import Raw
from pydantic_core import from_json

from actors.protocol import codec
from actors.protocol.capabilities import LEVELS
from actors.protocol.codec import Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.versions import negotiate
from actors.runtime.boundary import Boundary
from gateway.native import failures
from gateway.native.content import to_json
from gateway.native.context import Client, Context
from gateway.native.definitions import ResourceInfo
from gateway.native.errors import BadValuesError, InvalidParamsError, NotFoundError, PromptNotFoundError, cut
from gateway.native.prompts import completion_result
from gateway.native.providers import ResourceProvider, templates_of
from gateway.native.request import Request
from gateway.native.resources import read_result
from gateway.native.revisions import fit

if TYPE_CHECKING:
    from gateway.native.server import Server
    from gateway.native.session import Session

_NULL: Final = Raw(b"null")
_UNEXECUTED: Final = {"executed": "no"}
"""The data of an error by which a request is refused before any handler has run."""

_DIGITS: Final = 18
"""That the place in a list has at most."""

SUBSCRIPTIONS: Final = 1000
"""Resources that one session may subscribe to."""

Params: TypeAlias = Mapping[str, Raw]


Rest: TypeAlias = Callable[["Session", Context, Params], Coroutine[Any, Any, Mapping[str, Any]]]
"""What is left to do of a request, in a task."""


class AtOnce(NamedTuple):
    """A request that runs no handler: it is answered before the next message is read, so that a subscription and its
    end, or two log levels, take effect in the order they came. Where others have to be told of it, that is the `Rest`,
    done in a task. `needs` is what the session must offer for it."""

    needs: str
    do: Callable[["Session", Params], Mapping[str, Any] | Rest]


class InTask(NamedTuple):
    """A request that runs a handler, beside all others."""

    needs: str
    do: Rest


class Described(Protocol):
    """What has an entry in a list."""

    def describe(self, version: str) -> dict[str, Any]: ...


def initialize(session: "Session", params: Params) -> dict[str, Any]:
    """The handshake (lifecycle, "Initialization"): what the server has at this moment is what it offers."""
    version = negotiate(_text(params, "protocolVersion"))
    info, capabilities = _object(params, "clientInfo"), _object(params, "capabilities")
    server = session.server
    if server.make_state:
        session.state = server.make_state()
    client = Client(revision=version, capabilities=capabilities).introduced(info)
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
        raise InvalidParamsError(f"Unknown tool: {cut(name)}", _UNEXECUTED)
    raw = bytes(_raw_object(params, "arguments"))
    arguments = tool.arguments.parse_exactly(raw)
    value = await tool.handler(Request(context, tool=name, given=raw), arguments, session.server.threads)
    return tool.result(value, context.client.revision)


# Resources ----------------------------------------------------------------------------------------------------


async def list_resources(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`resources/list`: the fixed ones, those that templates list for this session, then page by page what each
    provider has."""
    server = session.server
    scheme, place = _place("resources", params)
    if not scheme:
        listed: list[ResourceInfo] = [resource.info for resource in server.resources.values()]
        for template in list(server.templates.values()):
            if template.listing:
                listed.extend(await template.listing(Request(context), {}, server.threads))
        page = _page(session, params, "resources", listed)
        if "nextCursor" in page or not server.providers:
            return page
        if page["resources"]:
            return page | {"nextCursor": _cursor("resources", next(iter(server.providers)), "")}
        scheme = next(iter(server.providers))
    return await _provided(session, scheme, place)


async def _provided(session: "Session", scheme: str, place: str) -> dict[str, Any]:
    """A page of this provider; where it has nothing at all, the first one of the next."""
    schemes, page = list(session.server.providers), {"resources": list[dict[str, Any]]()}
    if scheme not in schemes:
        raise InvalidParamsError("This cursor is not one of ours")
    for this, following in pairwise([*schemes[schemes.index(scheme) :], None]):
        assert this is not None, "None stands at the end alone"
        provider = session.server.providers.get(this)  # the ones before it took their time
        infos, cursor = await provider.list(place or None) if provider else ((), None)
        page["resources"] += _described(session, "resources/list", infos)
        if cursor:  # an empty one would ask for the first page again
            return page | {"nextCursor": _cursor("resources", this, cursor)}
        if page["resources"] and following is not None:
            return page | {"nextCursor": _cursor("resources", following, "")}
        if page["resources"]:
            break
        place = ""
    return page


async def list_templates(session: "Session", _: Context, params: Params) -> dict[str, Any]:
    """`resources/templates/list`."""
    listed: list[Described] = list(session.server.templates.values())
    for provider in list(session.server.providers.values()):
        listed.extend(await templates_of(provider))
    return _page(session, params, "resourceTemplates", listed)


async def read_resource(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`resources/read`: a resource by its URI, else the first template that matches, else the provider."""
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
        info = template.info
        request = Request(context, resource=info.name, uri=uri, uri_template=info.uri_template, given=variables)
        return read_result(uri, info.mime_type, await template.handler(request, values, server.threads))
    provider = server.provider_of(uri)
    if provider is None:
        raise NotFoundError(uri)
    return read_result(uri, None, await provider.read(uri))


def subscribe(session: "Session", params: Params) -> dict[str, Any] | Rest:
    """`resources/subscribe`, for what could be read."""
    uri, server = _text(params, "uri"), session.server
    if len(session.subscriptions) >= SUBSCRIPTIONS:
        raise InvalidParamsError(f"No more than {SUBSCRIPTIONS} subscriptions")
    if _is_own(server, uri):
        resource = server.resources.get(uri)
        session.subscribe(uri, resource.every if resource else None)
        return {}
    provider = server.provider_of(uri)
    if provider is None:
        raise NotFoundError(uri)
    if server.subscribers.has(uri, session):
        return {}
    session.subscribe(uri, None)
    session.subscribing[uri] += 1
    server.subscribers.add(uri, session)
    return partial(_subscribed, uri, provider)


async def subscribe_again(session: "Session", uri: str) -> None:
    """The same for a session that has come from another server; what is not here any more is subscribed to for when it
    comes back."""
    resource, provider = session.server.resources.get(uri), session.server.provider_of(uri)
    session.unsubscribe(uri)
    session.subscribe(uri, resource.every if resource else None)
    if provider is not None and not _is_own(session.server, uri):
        session.server.subscribers.add(uri, session)
        await session.server.subscribers.settle(uri, provider)


def _is_own(server: "Server", uri: str) -> bool:
    """Whether it stands before what a provider has."""
    return uri in server.resources or any(t.uri.match(uri) is not None for t in server.templates.values())


async def _subscribed(
    uri: str, provider: ResourceProvider, session: "Session", _: Context, __: Params
) -> dict[str, Any]:
    settled = False
    try:
        await session.server.subscribers.settle(uri, provider)
        settled = True
    finally:
        session.subscribing[uri] -= 1
        if not session.subscribing[uri]:
            del session.subscribing[uri]
        if not settled and uri not in session.subscribing:  # the next one of them will see for itself
            session.unsubscribe(uri)
            session.server.subscribers.discard(uri, session)
    return {}


def unsubscribe(session: "Session", params: Params) -> dict[str, Any] | Rest:
    """`resources/unsubscribe`."""
    uri, server = _text(params, "uri"), session.server
    session.unsubscribe(uri)
    server.subscribers.discard(uri, session)
    provider = server.provider_of(uri)
    return {} if provider is None else partial(_unsubscribed, uri, provider)


async def _unsubscribed(
    uri: str, provider: ResourceProvider, session: "Session", _: Context, __: Params
) -> dict[str, Any]:
    await session.server.subscribers.settle(uri, provider)
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
        raise PromptNotFoundError(name, _UNEXECUTED)
    raw = bytes(_raw_object(params, "arguments"))
    try:
        arguments = prompt.arguments.parse(raw)
    except BadValuesError as error:
        raise InvalidParamsError(str(error), _UNEXECUTED) from None
    value = await prompt.handler(Request(context, prompt=name, given=raw), arguments, session.server.threads)
    return prompt.result(value, context.client.revision)


async def complete(session: "Session", context: Context, params: Params) -> dict[str, Any]:
    """`completion/complete`: no values where nobody completes the argument, an error where there is none."""
    reference, argument = _object(params, "ref"), _object(params, "argument")
    name, typed = argument.get("name"), argument.get("value")
    if not isinstance(name, str) or not isinstance(typed, str):
        raise InvalidParamsError("The argument needs a name and a value")
    completer = session.server.completer(reference, name)
    if completer is None:
        return completion_result([])
    others = _object(params, "context").get("arguments") or {}
    if not isinstance(others, dict) or not all(isinstance(value, str) for value in others.values()):
        raise InvalidParamsError("The arguments filled in already must be texts by name")
    return completion_result(await completer(context, typed, others, session.server.threads))


def set_level(session: "Session", params: Params) -> dict[str, Any]:
    """`logging/setLevel`, for the whole session."""
    name = _text(params, "level")
    level = next((level for level in LEVELS if level == name), None)
    if level is None:
        raise InvalidParamsError(f"Unknown level: {cut(name)}", _UNEXECUTED)
    session.level = level
    return {}


METHODS: Final[Mapping[str, AtOnce | InTask]] = {
    "initialize": AtOnce("", initialize),
    "ping": AtOnce("", ping),
    "tools/list": AtOnce("tools", list_tools),
    "tools/call": InTask("tools", call_tool),
    "resources/list": InTask("resources", list_resources),
    "resources/templates/list": InTask("resources", list_templates),
    "resources/read": InTask("resources", read_resource),
    "resources/subscribe": AtOnce("resources", subscribe),
    "resources/unsubscribe": AtOnce("resources", unsubscribe),
    "prompts/list": AtOnce("prompts", list_prompts),
    "prompts/get": InTask("prompts", get_prompt),
    "completion/complete": InTask("completions", complete),
    "logging/setLevel": AtOnce("logging", set_level),
}


def called(session: "Session", method: str, params: Params) -> str:
    """The tool or the prompt that a request names, if there is one of this name."""
    try:
        name = codec.text(params.get("name", EMPTY))
    except Malformed:
        return ""
    server = session.server
    there = (method == "tools/call" and name in server.tools) or (method == "prompts/get" and name in server.prompts)
    return name if there else ""


# Params and pages ---------------------------------------------------------------------------------------------


def _text(params: Params, name: str) -> str:
    if name not in params:
        raise InvalidParamsError(f"{name} is missing")
    return codec.text(params[name])


def _raw_object(params: Params, name: str) -> Raw:
    raw = params.get(name, EMPTY)
    if not raw or bytes(raw) == b"null":
        return Raw(b"{}")
    if bytes(raw)[:1] != b"{":
        raise InvalidParamsError(f"{name} must be an object")
    return raw


def _object(params: Params, name: str) -> dict[str, Any]:
    value: dict[str, Any] = codec.loads(_raw_object(params, name))
    return value


def _page(session: "Session", params: Params, name: str, every: Iterable[Described]) -> dict[str, Any]:
    """One page of a list. A cursor names the list and the place in it; it is not kept, so it never expires."""
    size, entries = session.server.page_size, list(every)
    _, place = _place(name, params)
    start = int(place) if place else 0
    page = {name: _described(session, f"{name}/list", entries[start : start + size])}
    return page | ({"nextCursor": _cursor(name, "", str(start + size))} if start + size < len(entries) else {})


def _described(session: "Session", method: str, entries: Iterable[Described]) -> list[dict[str, Any]]:
    """Without those that can't say what they are, or say what has no JSON form: they would take the others with
    them."""
    described: list[dict[str, Any]] = []
    for entry in entries:
        with Boundary(on_exit=partial(session.undescribed, method)), failures.no_exit():
            described.append(from_json(to_json(entry.describe(session.client.revision))))
    return described


def _cursor(name: str, scheme: str, place: str) -> str:
    return urlsafe_b64encode(f"{name}:{scheme}:{place}".encode()).decode()


def _place(name: str, params: Params) -> tuple[str, str]:
    """Of the cursor in these params: the provider's scheme, empty for what is the server's own, and the place."""
    cursor = params.get("cursor", _NULL)
    if cursor == _NULL:
        return "", ""
    try:
        kind, scheme, place = urlsafe_b64decode(codec.text(cursor)).decode().split(":", 2)
    except (ValueError, BadBase64) as error:
        raise InvalidParamsError("This cursor is not one of ours") from error
    if kind != name:
        raise InvalidParamsError("This cursor belongs to another list")
    if not scheme and not (place.isascii() and place.isdigit() and len(place) < _DIGITS and int(place)):
        raise InvalidParamsError("This cursor is not one of ours")
    return scheme, place
