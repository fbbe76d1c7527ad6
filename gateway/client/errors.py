"""What goes wrong between a client and its server."""

from typing import Any, Literal

from msgspec import Raw

from actors.protocol.errors import parse_error_member
from actors.protocol.messages import EMPTY
from actors.protocol.payload import loads


class ClientError(Exception):
    """Root of the errors here. `code` is what the server said, None where it said nothing; `executed` tells whether the
    server may have done what it was asked to."""

    code: int | None = None

    def __init__(self, message: str, *, executed: Literal["no", "unknown"] = "unknown") -> None:
        super().__init__(message)
        self.executed = executed


class McpError(ClientError):
    """The server answered with an error: its `code`, `message` and `data`, and as it came, `raw`. A handler of the
    client raises it to refuse what a server asks for."""

    code: int

    def __init__(self, code: int, message: str, data: Any = None, *, status: int | None = None) -> None:
        surely_not = isinstance(data, dict) and data.get("executed") == "no"  # a gateway says so
        super().__init__(message, executed="no" if surely_not else "unknown")
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        """Of HTTP, where the answer was a refusal."""
        self.raw: dict[str, Any] = {"code": code, "message": message} | ({} if data is None else {"data": data})

    @classmethod
    def of(cls, error: Raw, status: int | None = None) -> "McpError":
        """The `error` member of a response, which the decoder has checked."""
        said = parse_error_member(error)
        made = cls(said.code, said.message, None if said.data is EMPTY else loads(said.data), status=status)
        made.raw = loads(error)
        return made


class RequestFailedError(ClientError):
    """No answer will come to this request. `reason` is a word for programs, `status` that of HTTP, if there was one."""

    def __init__(
        self, message: str, *, reason: str, executed: Literal["no", "unknown"], status: int | None = None
    ) -> None:
        super().__init__(message, executed=executed)
        self.reason = reason
        self.status = status


def not_resumable(what: str) -> RequestFailedError:
    """For a transport whose messages can't be asked for again."""
    return RequestFailedError(f"{what} has no event ids", reason="not_resumed", executed="no")


class ConnectionLostError(ClientError):
    """The connection is gone, and with it every request that had no answer. `stderr`: the last lines of a process."""

    def __init__(
        self, message: str, *, executed: Literal["no", "unknown"] = "unknown", stderr: tuple[str, ...] = ()
    ) -> None:
        super().__init__("\n".join([message, *(f"  {line}" for line in stderr)]), executed=executed)
        self.stderr = stderr


class InvalidAnswerError(ClientError):
    """The server's answer is not what the protocol says."""


class VersionError(ClientError):
    """Client and server have no revision of the protocol in common, or the server does not speak the wanted one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed="no")


class InputError(ClientError):
    """What the server wants to know before it goes on can't be answered: no handler, or too many rounds."""


class SessionForgottenError(ClientError):
    """The server has forgotten the session, and did not look at the request."""

    def __init__(self) -> None:
        super().__init__("the server has forgotten the session", executed="no")
