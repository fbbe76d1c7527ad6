"""What is known of a failure beyond the sentence that says it, and how much of it clients may see.

The log and the admin listener get everything. A client gets the HTTP status, and the last lines of the standard error
of a server that could not be started, without the addresses in them: where a server is, is no client's business.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol.errors import BROKEN


class Diagnostics(Struct, frozen=True):
    """Beside the sentence of a failure. `detail` may hold addresses; `stderr` are lines without credentials."""

    status: int | None = None
    """The HTTP status that the server answered with."""
    stderr: tuple[str, ...] = ()
    """The last lines that the server wrote to its standard error."""
    detail: str = ""
    """The sentence with addresses, for the log and the admin listener."""

    @property
    def shown(self) -> dict[str, Any]:
        """What goes into the `data` of an error; members that are None are left out of it."""
        return {"status": self.status, "stderr": [without_addresses(line) for line in self.stderr] or None}

    @property
    def unstarted(self) -> "Diagnostics":
        """Without the standard error: that of a server which has run may tell what it did for others."""
        return self if not self.stderr else Diagnostics(self.status, (), self.detail)


class _Data(Struct):
    status: int | None = None
    stderr: tuple[str, ...] = ()


class _Error(Struct):
    data: _Data | None = None


def told_by(error: Raw, detail: str, status: int | None = None) -> Diagnostics:
    """With what the error of another gateway says of the server behind it; `status`: that of the answer itself."""
    try:
        data = msgspec.json.decode(error, type=_Error).data or _Data()
    except BROKEN:
        data = _Data()
    return Diagnostics(data.status or status, tuple(line[:CHARACTERS] for line in data.stderr[:LINES]), detail)


class _Said(Struct):
    message: str = ""
    code: int = 0


def reason_of(error: Raw) -> str:
    """The message of a JSON-RPC error object, cut to a length fit for logs."""
    said = _said(error)
    return said.message[:500] if said is not None else "malformed error"


def refusal_of(error: Raw) -> str:
    """What a server says that refuses to speak with us: the message and the code of its JSON-RPC error."""
    said = _said(error)
    return f"{said.message[:500]} (error {said.code})" if said is not None else "malformed error"


def _said(error: Raw) -> _Said | None:
    try:
        return msgspec.json.decode(error, type=_Said)
    except BROKEN:
        return None


LINES: Final = 20
CHARACTERS: Final = 300
"""Of a standard error that comes by way of another gateway."""

NO_DIAGNOSTICS: Final = Diagnostics()

ADDRESS: Final = "[address]"
"""Stands where an address was."""

_DOMAINS: Final = (
    "com|net|org|io|dev|app|ai|cloud|co|eu|us|uk|de|local|localdomain|internal|intranet|lan|home|corp|svc|test|invalid"
    "|example"
)
_NO_HOSTS: Final = (
    r"line|col|column|row|pid|status|code|exit|errno|\w*\.(?:py|js|mjs|cjs|ts|tsx|go|rs|java|kt|rb|c|cc|cpp|cs|php)"
)
"""What stands before a colon and a number, and is no host."""
_ADDRESSES: Final = re.compile(
    r"""
      [A-Za-z][A-Za-z0-9+.-]{0,30}://(?:\[[0-9A-Fa-f:.%]{0,80}\])?[^\s"'<>`)\]}]*  # a URL
    | \[[0-9A-Fa-f.%]{0,40}:[0-9A-Fa-f:.%]{0,40}\](?::\d{1,5})?                      # [::1]:80
    | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)(?::\d{1,5}|["'],\s*\d{1,5})?      # 127.0.0.1:80, ('127.0.0.1', 80)
    | (?<![\w:.])(?=[0-9A-Fa-f:]{0,40}::|(?:[0-9A-Fa-f]{1,4}:){7})[0-9A-Fa-f:]{2,40}(?![\w:])  # ::1
    | \blocalhost\b(?::\d{1,5}|["'],\s*\d{1,5})?
    | (?<![\w.-])[A-Za-z0-9_](?:[\w-]*\.)+(?:DOMAINS)(?![\w-]|\.\w)(?::\d{1,5})?     # db.internal:5432
    | (?<![\w.:/\\-])(?!(?:NO_HOSTS):)(?=[\w-]*[A-Za-z])[\w-]+(?:\.[\w-]+)*:\d{2,5}(?![\w:.])  # db:5432
    | (?P<after>
          (?i:(?<=\bport)|(?<=\bports))(?:\s|\s?[=:\#]\s?)["']?\d{2,5}\b            # port 5432
        | (?i:(?<=ENOTFOUND)|(?<=EAI_AGAIN))\s[\w.-]+                                # getaddrinfo ENOTFOUND db
      )
    """.replace("DOMAINS", _DOMAINS).replace("NO_HOSTS", _NO_HOSTS),
    re.VERBOSE,
)


def without_addresses(text: str) -> str:
    """The text with what looks like a host, a port or a URL taken out."""
    return _ADDRESSES.sub(_hidden, text)


def _hidden(match: re.Match[str]) -> str:
    return f" {ADDRESS}" if match["after"] is not None else ADDRESS
