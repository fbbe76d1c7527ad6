"""A client of MCP servers, of every transport (see docs/client.md)."""

from gateway.client.client import Client, Progress
from gateway.client.errors import (
    ClientError,
    ConnectionLostError,
    InputError,
    InvalidAnswerError,
    McpError,
    RequestFailedError,
    SessionForgottenError,
    VersionError,
)
from gateway.client.opening import Target, open_client
from gateway.client.pages import Pages
from gateway.client.transport import Received, Transport
from gateway.client.values import (
    Argument,
    CallResult,
    Completion,
    Content,
    Contents,
    Message,
    Prompt,
    PromptResult,
    ReadResult,
    Resource,
    ResourceTemplate,
    Tool,
    Update,
    Wire,
)

__all__ = [
    "Argument",
    "CallResult",
    "Client",
    "ClientError",
    "Completion",
    "ConnectionLostError",
    "Content",
    "Contents",
    "InputError",
    "InvalidAnswerError",
    "McpError",
    "Message",
    "Pages",
    "Progress",
    "Prompt",
    "PromptResult",
    "ReadResult",
    "Received",
    "RequestFailedError",
    "Resource",
    "ResourceTemplate",
    "SessionForgottenError",
    "Target",
    "Tool",
    "Transport",
    "Update",
    "VersionError",
    "Wire",
    "open_client",
]
