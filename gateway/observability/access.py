"""The access log: one line for each HTTP request, in a form that the configuration chooses.

No line holds a query string, a header of credentials or a session id; a session is named by its handle. What a client
says of itself can't break out of its line.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from string import Formatter
from typing import Any, Final

FIELDS: Final = (
    "time",
    "client",
    "principal",
    "method",
    "path",
    "protocol",
    "status",
    "bytes",
    "ms",
    "session",
    "trace",
    "referer",
    "agent",
)
"""What a line may name; `-` stands for what is not known."""
COMBINED: Final = (
    '{client} - {principal} [{clf_time}] "{method} {path} {protocol}" {status} {bytes} "{referer}" "{agent}"'
)
"""Apache's and nginx's, by the same name."""
CLIENT_GONE: Final = 499
"""The status of a request whose client left before it was answered, as nginx has it."""

SHOWN: Final = 256
"""Characters of a text of the client's."""


@dataclass(slots=True)
class Access:
    """One HTTP request and its answer."""

    wall: float
    method: str = ""
    path: str = ""
    protocol: str = ""
    status: int = 0
    bytes: int = 0
    ms: float = 0.0
    client: str = ""
    principal: str = ""
    session: str = ""
    trace: str = ""
    referer: str = ""
    agent: str = ""
    asked: bool = False
    """The actors were asked, and say by themselves how that ended."""


def check_format(text: str) -> str | None:
    """Why this is no format of lines; None if it is one."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
        plain = all(not spec and not conversion for _, name, spec, conversion in Formatter().parse(text) if name)
    except ValueError as error:
        return str(error)
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        return f"{{{unknown[0]}}} is no field; there are {', '.join(FIELDS)}"
    if not plain:
        return "a field stands alone in its braces"
    return None if names else "it names no field: `off`, `json`, `combined`, or a text with fields in braces"


def _shown(text: str) -> str:
    """A text of a client's: short, of one line, and without the quotes that end it."""
    text = text[:SHOWN]
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return "".join(
        c if c.isprintable() and c not in '"\\' else c.encode("unicode_escape").decode() if c not in '"\\' else f"\\{c}"
        for c in text
    )


def formatter(style: str) -> Callable[[Access], str]:
    """How a line is made: `json`, `combined`, or a text with fields in braces."""
    if style == "json":
        return _as_json
    layout = COMBINED if style == "combined" else style

    def line(access: Access) -> str:
        return layout.format_map(_values(access))

    return line


def _values(access: Access) -> Mapping[str, Any]:
    moment = datetime.fromtimestamp(access.wall, UTC)
    texts = {name: _shown(str(getattr(access, name))) or "-" for name in FIELDS if name not in ("time", "ms")}
    times = {"time": moment.isoformat(timespec="milliseconds"), "clf_time": f"{moment:%d/%b/%Y:%H:%M:%S %z}"}
    return {**texts, **times, "ms": f"{access.ms:.3f}"}


def _as_json(access: Access) -> str:
    moment = datetime.fromtimestamp(access.wall, UTC).isoformat(timespec="milliseconds")
    found: dict[str, Any] = {"event": "access", "time": moment}
    for name in FIELDS[1:]:
        value = getattr(access, name)
        if value != "":
            found[name] = value[:SHOWN] if isinstance(value, str) else value
    found["ms"] = round(access.ms, 3)
    return json.dumps(found)
