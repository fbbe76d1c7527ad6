"""What larger servers are made of: objects that execute tools, write prompts, and provide resources by URI scheme."""

import inspect
import re
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from gateway.native.context import Context
from gateway.native.definitions import PromptDefinition, ResourceInfo, TemplateInfo, ToolDefinition
from gateway.native.functions import is_plain

if TYPE_CHECKING:
    from gateway.native.session import Session

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
"""RFC 3986, section 3.1, in the form that is compared."""


class ToolExecutor(Protocol):
    """A tool as an object, for `Server.add_tool`."""

    @property
    def definition(self) -> ToolDefinition:
        """How it stands in lists."""

    async def execute(self, arguments: dict[str, Any], ctx: Context, /) -> Any:
        """What a function that is a tool may return. The arguments fit the input schema."""


class PromptTemplate(Protocol):
    """A prompt as an object, for `Server.add_prompt`."""

    @property
    def definition(self) -> PromptDefinition:
        """How it stands in lists."""

    async def get(self, arguments: dict[str, Any], ctx: Context, /) -> Any:
        """What a function that is a prompt may return."""


ResourcePage: TypeAlias = tuple[Sequence[ResourceInfo], str | None]


class ResourceProvider(Protocol):
    """All resources of one URI scheme, for `Server.provide`. It may also have `async subscribe(uri)` and `async
    unsubscribe(uri)`, called when the first session subscribes and the last one is gone, and `templates()`, async or
    not, a list of `TemplateInfo`."""

    async def list(self, cursor: str | None, /) -> ResourcePage:
        """A page of what there is, and the cursor of the next page, if there is one; the first has the cursor None."""

    async def read(self, uri: str, /) -> Any:
        """What a function that is a resource may return. NotFoundError where there is nothing."""


def scheme_of(uri: str) -> str:
    """In the form that is compared; empty where there is none."""
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def checked_scheme(scheme: str) -> str:
    """A scheme in the form that is compared. ValueError."""
    if not _SCHEME.fullmatch(scheme.lower()):
        raise ValueError(f"{scheme!r} is no scheme of URIs: a letter, then letters, digits, + . or -")
    return scheme.lower()


def require(given: Any, *methods: str, perhaps: Sequence[str] = ()) -> None:
    """TypeError for an object that lacks one of these async methods, or has one of them, or of those that it may have
    `perhaps`, as a plain function: that would hold up everybody while it works."""
    for name in (*methods, *perhaps):
        method = getattr(given, name, None)
        if method is None and name in perhaps:
            continue
        if not callable(method):
            raise TypeError(f"{given!r} has no method {name!r}")
        if is_plain(method):
            raise TypeError(f"{given!r}: its {name!r} must be async, a function that returns once: `async def {name}`")


async def templates_of(provider: ResourceProvider) -> Sequence[TemplateInfo]:
    """Those that it has."""
    templates = getattr(provider, "templates", None)
    if templates is None:
        return ()
    found = templates()
    listed: Sequence[TemplateInfo] = await found if inspect.isawaitable(found) else found
    return listed


class Subscribers:
    """Who subscribed to what a provider has. It is told of the first one and of the last one, in this order, however
    often they come and go meanwhile."""

    def __init__(self) -> None:
        self._wanted: defaultdict[str, set[Session]] = defaultdict(set)
        self._told: set[str] = set()
        self._turn: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    def add(self, uri: str, session: "Session") -> None:
        """The session wants to hear of it, once `settle` has told the provider."""
        self._wanted[uri].add(session)

    def discard(self, uri: str, session: "Session") -> None:
        """It does not any more; the same."""
        self._wanted[uri].discard(session)

    def of(self, session: "Session") -> Sequence[str]:
        """What the session wants to hear of."""
        return [uri for uri, sessions in self._wanted.items() if session in sessions]

    async def settle(self, uri: str, provider: ResourceProvider) -> None:
        """Tells the provider what has changed, if it has. Whatever that raises."""
        async with self._turn[uri]:
            wanted = bool(self._wanted[uri])
            if wanted and uri not in self._told:
                await _tell(provider, "subscribe", uri)
                self._told.add(uri)
            elif not wanted and uri in self._told:
                self._told.discard(uri)
                await _tell(provider, "unsubscribe", uri)
        if not self._wanted[uri] and uri not in self._told and not self._turn[uri].statistics().tasks_waiting:
            del self._wanted[uri], self._turn[uri]

    def has(self, uri: str, session: "Session") -> bool:
        """Whether the session wants to hear of it, and the provider knows that somebody does."""
        return uri in self._told and session in self._wanted.get(uri, ())

    def forget(self, scheme: str) -> None:
        """Its provider is gone."""
        self._told = {uri for uri in self._told if scheme_of(uri) != scheme}


async def _tell(provider: ResourceProvider, what: str, uri: str) -> None:
    method = getattr(provider, what, None)
    if method is not None:
        await method(uri)


class Calling:
    """Called as a handler is, for the method of an object: `method(arguments, context)`."""

    def __init__(self, method: Any) -> None:
        self._method = method

    async def __call__(self, request: Any, _: Mapping[str, Any], __: trio.CapacityLimiter) -> Any:
        """What it returns; what it raises passes through."""
        returned: Awaitable[Any] = self._method(request.params, request.context)
        return await returned
