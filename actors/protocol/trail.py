"""Every event of the audit trail: what it tells, and the members of its line, in one table.

The four members that each line begins with (`ts`, `id`, `prev`, `event`) are the chain's. A member that has nothing to
say is left out. No member holds a token, a key, a header or an answer of a user's.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec import Struct


class Event(NamedTuple):
    """One row. `refusal`: somebody was kept from something, which collectors get as a warning."""

    name: str
    help: str
    members: tuple[str, ...]
    refusal: bool = False


MEMBERS: Final = {
    "account": "whose account it is: the principal's; a token of the gateway itself has none",
    "action": "what was done, or was to be done; or has happened",
    "after": "a keyed digest of the configuration in force since then; of a pin SHA-256 of what is defined now",
    "args": "what is told of the arguments, as `audit.arguments` says",
    "before": "the same of the one in force until then; of a pin of what was accepted",
    "by": "what caused it: `start`, `signal`, `files`, or in a worker its `supervisor`",
    "change": "`new`, `changed`, `widened` or `removed`",
    "client_id": "the OAuth client of the token that came with the request",
    "code": "of the JSON-RPC error that was answered",
    "count": "how many lines this one stands for: further ones that said the same within 10 s; of `pin.change` further "
    "differences",
    "endpoint": "the endpoint that was called; none: `/mcp`",
    "era": "`legacy` (sessions) or `modern`; of a token as far as the headers say it",
    "held": "whether it is held back",
    "host": "the machine",
    "ip": "the address of the client's connection",
    "iss": "the issuer of that token; `static:` of a configured one",
    "item": "the tool or prompt by the name that was used, the URI, the task; of a `deny` with its kind before it",
    "keys": "the keys of the configuration that are others now, without their values",
    "kind": "`tool`, `prompt`, `resource`, `template` or `instructions`",
    "mac": "the signature",
    "method": "of MCP",
    "mode": "of the policy: `enforce` or `observe`; of a question to a user: `form` or `url`",
    "ms": "milliseconds that it took",
    "outcome": "how it ended",
    "pid": "the process",
    "principal": "who asked",
    "problem": "what was wrong, in words",
    "reason": "why, in a word",
    "rule": "the rule that decided; or `pins`, or the filter of a server (`mcpServers.NAME.disabledTools`)",
    "scopes": "that were granted",
    "server": "the MCP server, by its name in the configuration",
    "session": "the handle of the session",
    "span_id": "the span in it: the gateway's own where it traces, else the client's",
    "status": "the HTTP status of the answer",
    "target": "whom or what an operator acted on",
    "to": "the replica that it was to go to",
    "trace_id": "the trace",
    "transport": "`http`; `channel` for WebSocket, HTTP+SSE and stdio; `mail` if it came by another replica",
    "unseen": "what of the definition its reader does not see, or takes for something else",
    "version": "of the gateway",
}
"""What each member is."""

WHO: Final = ("principal", "iss", "client_id", "ip")
"""Who asked."""
WHERE: Final = ("endpoint", "session", "era", "transport", "trace_id", "span_id")
"""By which way."""


class RequestLine(Struct, kw_only=True, omit_defaults=True, gc=False):
    """What a line on a request says, with its members in their order. There is one for each call: it is made and
    written without a look at its members one by one."""

    method: str
    principal: str = ""
    iss: str = ""
    client_id: str = ""
    ip: str = ""
    item: str = ""
    args: Any = None
    outcome: str
    code: int | None = None
    ms: float
    server: str = ""
    endpoint: str = ""
    session: str = ""
    era: str = ""
    transport: str = ""
    trace_id: str = ""
    span_id: str = ""


_REQUEST: Final = RequestLine.__struct_fields__

AUDITED: Final = frozenset(
    {
        "initialize",
        "tools/call",
        "prompts/get",
        "resources/read",
        "resources/subscribe",
        "completion/complete",
        "tasks/get",
        "tasks/result",
        "tasks/cancel",
        "tasks/update",
        "subscriptions/listen",
    }
)
"""Requests that get a line: what is done or read. What is only looked at, as lists, is not told."""

START: Final = "audit.start"
HEAD: Final = "audit.head"
END: Final = "audit.end"
LOST: Final = "audit.lost"

EVENTS: Final = {
    event.name: event
    for event in (
        Event(
            "authn.ok",
            "a token was good: once for each token, what it gives, and address, in each process",
            (*WHO, "era"),
        ),
        Event(
            "authn.fail",
            "somebody was not let in: `reason` says why, and nothing of the token is told",
            ("reason", "ip", "era", "status", "count"),
            refusal=True,
        ),
        Event("session", "a client opened a session", _REQUEST),
        Event(
            "session.end",
            "a session has ended: `reason` is `delete` (its client said so, or its connection ended), `idle`, "
            "`operator`, `revoked`, `unconfigured`, `poisoned` (it could not be rebuilt), or before it began "
            "`initialize_failed`, `initialize_malformed` or `shutdown`. Where the store is memory, those that are "
            "there end with their process, and only its drain is told",
            ("reason", "principal", "endpoint", "session", "era"),
        ),
        Event(
            "call",
            "a request had its end: tools, prompts, resources, completion, tasks, subscriptions. Lists and pings are "
            "not told",
            _REQUEST,
        ),
        Event(
            "deny",
            "a rule refused something, or pins or a filter did, or a limit (`outcome` is `limited`, and `count` more "
            'within 10 s); or under `"policyMode": "observe"` would have',
            ("mode", "item", "outcome", "rule", "server", "args", *WHO, *WHERE, "count"),
            refusal=True,
        ),
        Event(
            "elicit",
            "a user was asked for something, or has answered. `outcome` is `asked`; then `accept`, `decline`, "
            "`cancel`, `answered`, `error`, `expired` or `withdrawn`. What was asked and answered is not told",
            ("method", "mode", "outcome", "server", *WHO, *WHERE),
        ),
        Event(
            "connect",
            "an account was connected or disconnected, or somebody who might not was at its page: `outcome` is "
            "`connected`, `disconnected`, `refused` or `failed`",
            ("outcome", "account", "server", "reason", "ip", "era", "count"),
        ),
        Event(
            "token.fetch",
            "the gateway has got a token for a server, for itself or for an account",
            ("server", "account", "iss", "scopes"),
        ),
        Event("token.refresh", "a token of an account was renewed", ("server", "account", "iss", "scopes")),
        Event(
            "token.refused",
            "a server, or its issuer, took none of our credentials",
            ("server", "account", "iss", "reason", "count"),
            refusal=True,
        ),
        Event(
            "token.revoke",
            "a token was given back to its issuer: `outcome` is `revoked` or `failed`",
            ("server", "account", "iss", "outcome"),
            refusal=True,
        ),
        Event(
            "policy.reload",
            "a configuration came into force (`outcome` is `started` or `reloaded`), or did not (`refused`)",
            ("outcome", "by", "before", "after", "keys", "problem"),
        ),
        Event(
            "pin.change",
            "a server [defines](pins.md) something otherwise than was accepted: once for each difference and process; "
            "of one list 200, and then a line without `item` that has the `count` of the others",
            ("server", "kind", "item", "change", "held", "unseen", "before", "after", "count"),
        ),
        Event(
            "admin",
            "an operator has done something by the admin listener (`outcome` is `done`), or could not (`refused`): "
            "`end`, `move` or `take` of a session, `revoke` or `restore` of a principal",
            ("action", "target", "to", "outcome", "status", "ip"),
        ),
        Event(
            "process",
            "what becomes of processes: `action` is `drain`; of a supervisor also `kill` by a second signal, `roll`, "
            "which replaces its workers (`outcome` is `done` or `refused`), and `died`: a worker has ended unasked, "
            "and its chain may have no end",
            ("action", "outcome", "reason", "pid"),
        ),
        Event(START, "a process begins its chain", ("version", "host", "pid")),
        Event(HEAD, "the chain is signed up to here", ("mac",)),
        Event(END, "the process has ended as it should, and signs", ("mac",)),
        Event(LOST, "lines were lost, so many", ("count",), refusal=True),
    )
}
"""By name."""


def undeclared(event: str, members: Iterable[str]) -> list[str]:
    """What of a line the table does not have."""
    row = EVENTS.get(event)
    return [event] if row is None else sorted(set(members) - set(row.members))
