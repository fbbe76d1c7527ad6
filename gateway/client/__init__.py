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

__all__ = [
    "Client",
    "ClientError",
    "ConnectionLostError",
    "InputError",
    "InvalidAnswerError",
    "McpError",
    "Pages",
    "Progress",
    "Received",
    "RequestFailedError",
    "SessionForgottenError",
    "Target",
    "Transport",
    "VersionError",
    "open_client",
]
