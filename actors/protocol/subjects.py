"""What a request names: the tool, the prompt or the resource that rules are asked about."""

from typing import Any, Final, NamedTuple

from msgspec import Raw

from actors.protocol import payload as json
from actors.protocol import spelling
from actors.protocol.errors import Malformed, ProtocolError, invalid_params, resource_not_found
from actors.protocol.globs import EXPRESSION
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.policy import Kind
from actors.protocol.spelling import Members

CALL: Final = "tools/call"
COMPLETE: Final = "completion/complete"

LISTED: Final[dict[str, Kind]] = {
    "tools/list": "tool",
    "prompts/list": "prompt",
    "resources/list": "resource",
    "resources/templates/list": "template",
}
"""What the items of a list are."""

_MEMBER: Final[dict[str, tuple[Kind, str]]] = {
    CALL: ("tool", "name"),
    "prompts/get": ("prompt", "name"),
    "resources/read": ("resource", "uri"),
    SUBSCRIBE: ("resource", "uri"),
    UNSUBSCRIBE: ("resource", "uri"),
}


class Subject(NamedTuple):
    """What is named, and the params written anew: of two members of one name we look at the last, and a server may look
    at the first."""

    kind: Kind
    name: str
    params: Raw


def named(method: str, params: Raw) -> Subject | None:
    """What a request is about; None: about nothing in particular. A method that MCP does not have counts as a tool of
    its name: what it does, nobody here knows. Raises Malformed."""
    if method == COMPLETE:
        return _reference(params)
    row = _MEMBER.get(method)
    if row is None:
        return None if method in METHODS else Subject("tool", method, params)
    kind, member = row
    present = json.members(params)
    spelling.check(present)
    if member not in present:
        raise Malformed(invalid_params(f"{member} is missing"))
    return Subject(kind, json.text(present[member]), json.dumps(present))


def _reference(params: Raw) -> Subject | None:
    """What arguments are completed for. A resource is named there by its template, or by what has become of it."""
    present = json.members(params)
    spelling.check(present)
    ref = json.members(present.get("ref", EMPTY) or Raw(b"{}"))
    spelling.check(ref, spelling.REF)
    kind = json.text_or_none(ref.get("type"))
    member = {"ref/prompt": "name", "ref/resource": "uri"}.get(kind or "")
    if member is None:
        raise Malformed(invalid_params("Unknown type of ref"))
    name = json.text_or_none(ref.get(member))
    if name is None:
        raise Malformed(invalid_params(f"{member} is missing"))
    anew = json.dumps({**present, "ref": json.dumps(ref)})
    if member == "name":
        return Subject("prompt", name, anew)
    return Subject("template" if EXPRESSION.search(name) else "resource", name, anew)


def unknown(method: str, subject: Subject) -> ProtocolError:
    """What is said of a name that there is not, and of one that is hidden."""
    if method == COMPLETE:
        return invalid_params(f"Unknown ref: {subject.name[:200]}")
    if subject.kind == "resource":
        return resource_not_found(subject.name)
    return invalid_params(f"Unknown {subject.kind}: {subject.name[:200]}")


def arguments(params: Raw, known: Members) -> tuple[Any, Raw]:
    """The arguments of a call as values, and the params with just these. `known`: names in them that conditions ask
    about. Raises Malformed."""
    present = json.members(params)
    given = present.get("arguments")
    if given is None:
        return {}, params
    values = json.loads(given)
    spelling.check_within(values, known)  # of which a condition sees the one, and the server may the other
    return values, json.dumps({**present, "arguments": json.dumps(values)})
