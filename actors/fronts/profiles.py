"""What a backend is told of the client behind a connection."""

from msgspec import Raw

from actors.protocol import capabilities, tasks
from actors.protocol import payload as json
from actors.protocol.link_state import Profile
from actors.protocol.session_state import Client
from actors.protocol.versions import can_use

ASKABLE = {"sampling", "elicit.form", "elicit.url"}
"""What a backend asks for in the course of a call."""


def profile_of(
    client: Client | None, bits: capabilities.ClientBits, epoch: int, identity: bytes, version: str = ""
) -> Profile:
    """Of a client with these bits, in the life of its session with this epoch; None: of the gateway itself, for a
    shared connection, over which nothing may be asked since the answer would be anybody's. `version` is the client's
    revision, where the connection is its session's own: such a client may have tasks."""
    prefix = to_base36(epoch)
    if client is None:
        return Profile(Raw(b"{}"), Raw(identity), False, f"{prefix}s")
    listens = client.capabilities.has(("roots", "listChanged"))
    declared = capabilities.declare(bits, roots_list_changed=listens)
    own = can_use(version, "tasks")
    if own and "tasks" in client.capabilities.tree:
        offered = json.members(tasks.offered(client.capabilities.raw)).get("tasks")
        declared = json.replace_members(declared, {"tasks": offered})
    return Profile(declared, client.info, bool(bits & ASKABLE), prefix, tasks=own)


def to_base36(number: int) -> str:
    """Digits and lower-case letters."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while number:
        number, rest = divmod(number, 36)
        out = digits[rest] + out
    return out or "0"
