"""Stagedoor's public API: servers that run inside the gateway (`"native": "module:server"` in a configuration), and a
client of MCP servers. What is not used is not imported."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.client import open_client
    from gateway.native import (
        Audio,
        Caller,
        Client,
        ClientRefusedError,
        ClientTimeoutError,
        ClientUnableError,
        Content,
        Context,
        Elicited,
        Embedded,
        Image,
        InternalError,
        InvalidParamsError,
        InvalidRequestError,
        Link,
        Message,
        MethodNotFoundError,
        NotFoundError,
        ParseError,
        PromptDefinition,
        PromptNotFoundError,
        Request,
        ResourceInfo,
        Response,
        Root,
        RpcError,
        Sample,
        Server,
        TemplateInfo,
        Text,
        ToolDefinition,
        ToolError,
        ToolResult,
        UrlElicitation,
        UrlRequiredError,
        assistant,
        error_of,
        user,
    )

__all__ = [
    "Audio",
    "Caller",
    "Client",
    "ClientRefusedError",
    "ClientTimeoutError",
    "ClientUnableError",
    "Content",
    "Context",
    "Elicited",
    "Embedded",
    "Image",
    "InternalError",
    "InvalidParamsError",
    "InvalidRequestError",
    "Link",
    "Message",
    "MethodNotFoundError",
    "NotFoundError",
    "ParseError",
    "PromptDefinition",
    "PromptNotFoundError",
    "Request",
    "ResourceInfo",
    "Response",
    "Root",
    "RpcError",
    "Sample",
    "Server",
    "TemplateInfo",
    "Text",
    "ToolDefinition",
    "ToolError",
    "ToolResult",
    "UrlElicitation",
    "UrlRequiredError",
    "assistant",
    "error_of",
    "open_client",
    "user",
]


def __getattr__(name: str) -> Any:
    if name == "open_client":
        from stagedoor import opening

        return opening.open_client
    if name in __all__:
        from gateway import native

        return getattr(native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
