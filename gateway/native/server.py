"""An MCP server made of functions, that runs in the gateway's process.

    server = Server("weather")

    @server.tool
    async def forecast(city: str, days: int = 3) -> str:
        "What the weather will be."
        ...

Names, descriptions and schemas come from the functions. A server may be changed while it runs; connected clients are
told. Everything here belongs to the event loop's thread: from another one, use `trio.from_thread.run_sync`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import trio

from actors.protocol.messages import RequestId
from actors.protocol.methods import ListKind
from gateway.native import prompts, resources, tools
from gateway.native.background import Background, BackgroundFunction
from gateway.native.definitions import Description, Icons, PromptArguments
from gateway.native.errors import InvalidParamsError
from gateway.native.prompts import Completer, Prompt
from gateway.native.providers import (
    PromptTemplate,
    ResourceProvider,
    Subscribers,
    ToolExecutor,
    checked_scheme,
    require,
    scheme_of,
)
from gateway.native.resources import Resource, Template
from gateway.native.session import Blocked, Crash, Session
from gateway.native.tools import Tool
from gateway.native.validation import Schema

F = TypeVar("F", bound=Callable[..., Any])


class Server:
    """A named set of tools, resources and prompts.

    `state` makes a value for each session, found at `Context.state`. `patience` is how long, in seconds, the client
    has to answer a question of a handler. `threads` handlers written without `async` run at a time.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0",
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website: str | None = None,
        icons: Icons = None,
        state: Callable[[], Any] | None = dict,
        page_size: int = 100,
        requests_per_session: int = 512,
        threads: int = 16,
        patience: float = 300.0,
    ) -> None:
        self.name = name
        self.instructions = instructions
        self.info = {
            "name": name,
            "version": version,
            "title": title,
            "description": description,
            "websiteUrl": website,
            "icons": icons,
        }
        self.make_state = state
        self.page_size = page_size
        self.requests_per_session = requests_per_session
        self.patience = patience
        self.threads = trio.CapacityLimiter(threads)
        self.tools: dict[str, Tool] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Template] = {}
        self.prompts: dict[str, Prompt] = {}
        self.providers: dict[str, ResourceProvider] = {}
        self.subscribers = Subscribers()
        self.backgrounds: list[Background] = []
        self._completers: dict[tuple[str, str], Completer] = {}
        self._sessions: set[Session] = set()

    # What it offers -------------------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        hints: Mapping[str, Any] | None = None,
        icons: Icons = None,
        structured: bool = True,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        hints: Mapping[str, Any] | None = None,
        icons: Icons = None,
        structured: bool = True,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> F | Callable[[F], F]:
        """A tool that the model may call. Its input schema is made of the parameters, its output schema of the
        return type (not of `str` and contents, nor if `structured` is off), where none is given; `hints` are its MCP
        annotations. Schemas and the description may be functions, asked whenever they are needed."""

        def add(function: F) -> F:
            built = tools.tool(
                function,
                name=name,
                title=title,
                description=description,
                hints=hints,
                icons=icons,
                structured=structured,
                input_schema=input_schema,
                output_schema=output_schema,
            )
            self._add("tools", self.tools, built.definition.name, built)
            return function

        return add if function is None else add(function)

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        mime_type: str | None = None,
        icons: Icons = None,
        every: float | None = None,
    ) -> Callable[[F], F]:
        """A resource at a fixed URI; the function returns text, bytes, or any JSON value. One that changes by
        itself says `every` how many seconds: subscribers are told then. Of other changes tell `updated`."""
        _check_uri(uri, "resource")

        def add(function: F) -> F:
            built = resources.resource(
                function,
                uri,
                name=name,
                title=title,
                description=description,
                mime_type=mime_type,
                icons=icons,
                every=every,
            )
            self._add("resources", self.resources, uri, built)
            return function

        return add

    def template(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        mime_type: str | None = None,
        icons: Icons = None,
        listing: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]:
        """Resources whose URIs follow a pattern, `notes://{id}`; its variables are the function's parameters.
        `listing` is a function that returns a `ResourceInfo` for each one to be listed."""
        _check_uri(uri, "template")

        def add(function: F) -> F:
            built = resources.template(
                function,
                uri,
                name=name,
                title=title,
                description=description,
                mime_type=mime_type,
                icons=icons,
                listing=listing,
            )
            self._add("resources", self.templates, uri, built)
            return function

        return add

    @overload
    def prompt(self, function: F, /) -> F: ...

    @overload
    def prompt(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        icons: Icons = None,
        arguments: PromptArguments | None = None,
    ) -> Callable[[F], F]: ...

    def prompt(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: Description = None,
        icons: Icons = None,
        arguments: PromptArguments | None = None,
    ) -> F | Callable[[F], F]:
        """A prompt that the user may pick; the function returns text, a `Message`, or several. Its arguments are the
        parameters, where none are given."""

        def add(function: F) -> F:
            built = prompts.prompt(
                function, name=name, title=title, description=description, icons=icons, arguments=arguments
            )
            self._add("prompts", self.prompts, built.definition.name, built)
            return function

        return add if function is None else add(function)

    def complete(self, of: str, argument: str) -> Callable[[F], F]:
        """Completes an argument of a prompt (by its name) or a variable of a template (by its URI): the function
        gets what is typed so far and returns the values that fit, the best ones first."""
        target = self.prompts.get(of) or self.templates.get(of)
        if target is None:
            raise ValueError(f"there is no prompt or template {of!r} yet")
        if argument not in target.arguments.schema["properties"]:
            raise ValueError(f"{of!r} has no argument {argument!r}")

        def add(function: F) -> F:
            self._completers[of, argument] = prompts.completer(function)
            return function

        return add

    def background(self, function: BackgroundFunction) -> BackgroundFunction:
        """An async function that runs beside the handlers while there is a session: once, however many there are. It
        may be cancelled and begun anew when one ends. Register it before the first session; if it raises, that is
        logged."""
        self.backgrounds.append(Background(function))
        return function

    def add_tool(self, executor: ToolExecutor) -> None:
        """A tool as an object, with a `definition` and `async execute(arguments, ctx)`, which returns what a function
        may. TypeError and ValueError say what it lacks."""
        built = tools.executed(executor)
        self._add("tools", self.tools, built.definition.name, built)

    def add_prompt(self, template: PromptTemplate) -> None:
        """A prompt as an object, with a `definition` and `async get(arguments, ctx)`, which returns what a function
        may. TypeError and ValueError say what it lacks."""
        built = prompts.written(template)
        self._add("prompts", self.prompts, built.definition.name, built)

    def provide(self, scheme: str, provider: ResourceProvider) -> None:
        """All resources of a URI scheme as an object, with `async list(cursor)` and `async read(uri)`; where it has
        them, `async subscribe(uri)`, `async unsubscribe(uri)` and `templates()`. What is registered by its own URI or
        template goes before. One that takes the place of another is told of what is subscribed to. TypeError and
        ValueError say what it lacks."""
        require(provider, "list", "read", perhaps=("subscribe", "unsubscribe"))
        self._add("resources", self.providers, checked_scheme(scheme), provider)
        for session in self._sessions:
            session.provided(scheme.lower())

    def unprovide(self, scheme: str) -> None:
        """The provider is gone, and is told nothing more; KeyError if there was none."""
        del self.providers[scheme.lower()]
        self.subscribers.forget(scheme.lower())
        self.list_changed("resources")

    def provider_of(self, uri: str) -> ResourceProvider | None:
        """Who provides the resources of its scheme."""
        return self.providers.get(scheme_of(uri))

    def remove_tool(self, name: str) -> None:
        """The tool is gone; KeyError if there was none. Calls that run go on."""
        del self.tools[name]
        self.list_changed("tools")

    def remove_resource(self, uri: str) -> None:
        """The resource or template is gone; KeyError if there was none."""
        del (self.resources if uri in self.resources else self.templates)[uri]
        self.list_changed("resources")

    def remove_prompt(self, name: str) -> None:
        """The prompt is gone; KeyError if there was none."""
        del self.prompts[name]
        self.list_changed("prompts")

    # What it tells --------------------------------------------------------------------------------------------

    def updated(self, uri: str) -> None:
        """The resource changed: every session that subscribed to it is told."""
        for session in self._sessions:
            session.resource_updated(uri)

    def list_changed(self, kind: ListKind) -> None:
        """A list changed: every session is told."""
        for session in self._sessions:
            session.list_changed(kind)

    def elicitation_complete(self, id: str) -> None:
        """The user has been at the page of this elicitation: the client that was sent there is told."""
        for session in self._sessions:
            session.elicitation_complete(id)

    # For the transport ----------------------------------------------------------------------------------------

    def connect(
        self,
        send: Callable[[bytes, RequestId | None], None],
        crash: Crash,
        message_bytes: int = 4 * 1024 * 1024,
        principal: str | None = None,
        blocked: Blocked | None = None,
    ) -> Session:
        """A session for one client, to be run. It hands each frame to `send`, with the request that it belongs to;
        `send` must not wait, nor raise. `crash` and `blocked` hear of handlers that do what they should not."""
        return Session(self, send, crash, message_bytes, principal, blocked)

    def hand_over(self, heir: "Server") -> None:
        """Every session goes on with this other server; calls that run end here."""
        for session in list(self._sessions):
            session.go_on_with(heir)

    @property
    def connected(self) -> int:
        """Sessions that run."""
        return len(self._sessions)

    def joined(self, session: Session) -> None:
        """The session runs."""
        self._sessions.add(session)

    def left(self, session: Session) -> None:
        """The session has ended."""
        self._sessions.discard(session)

    def offers(self) -> frozenset[str]:
        """The features for a session that begins at this moment; one that begins later may be offered more."""
        has = {
            "tools": self.tools,
            "resources": self.resources or self.templates or self.providers,
            "prompts": self.prompts,
            "completions": self._completers,
            "logging": True,
        }
        return frozenset(name for name, there in has.items() if there)

    def completer(self, reference: Mapping[str, Any], argument: str) -> Completer | None:
        """Who completes this; RpcError (-32602) if there is no such prompt, template or argument."""
        target: Prompt | Template | None
        if reference.get("type") == "ref/prompt":
            of = reference.get("name")
            target = self.prompts.get(str(of))
        elif reference.get("type") == "ref/resource":
            of = reference.get("uri")
            target = self.templates.get(str(of))
        else:
            raise InvalidParamsError("ref must be a ref/prompt or a ref/resource")
        if target is None or argument not in target.arguments.schema["properties"]:
            raise InvalidParamsError(f"There is no {of!r} with an argument {argument!r}")
        return self._completers.get((str(of), argument))

    def _add(self, kind: ListKind, there: dict[str, Any], key: str, value: Any) -> None:
        if key in there:
            raise ValueError(f"there is a {key!r} already")
        there[key] = value
        self.list_changed(kind)


def _check_uri(uri: str, kind: str) -> None:
    """TypeError for a function, which would be taken for the URI, and registered as nothing."""
    if not isinstance(uri, str):
        raise TypeError(f'write @server.{kind}("scheme:…"): a {kind} needs its URI')
