"""MCP servers that run in the gateway's process, written as plain functions (see docs/native-servers.md)."""

from gateway.native.content import (
    Audio,
    Content,
    Embedded,
    Image,
    Link,
    Message,
    Text,
    ToolResult,
    assistant,
    user,
)
from gateway.native.context import Client, Context, Elicited, Root, Sample
from gateway.native.definitions import PromptDefinition, ResourceInfo, TemplateInfo, ToolDefinition
from gateway.native.errors import (
    ClientRefusedError,
    ClientTimeoutError,
    ClientUnableError,
    NotFoundError,
    RpcError,
    ToolError,
    UrlElicitation,
    UrlRequiredError,
)
from gateway.native.request import Caller, Request, Response
from gateway.native.server import Server

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
    "Link",
    "Message",
    "NotFoundError",
    "PromptDefinition",
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
    "user",
]
