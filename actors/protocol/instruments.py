"""Every metric of the gateway: its name, kind, labels and help, in one table.

The first three names are OpenTelemetry's for MCP, in the spelling of Prometheus. No label has a value that a client
can choose; servers choose the names of the tools that they list, of which the adapter keeps a bounded number apart. A
session id is never a label.

Where all values of a label are known they stand in `values`, and every series of them is there from the start, at 0:
what appears with its first event has no increase that anybody could see.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final, Literal, NamedTuple, TypeAlias

from actors.protocol import errors
from actors.protocol.issuers import REFUSALS

OTHER: Final = "other"
"""What a label says for a name that is not counted by itself."""

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


SERVER: Final = "server"
"""The label for the name of a configured server."""

Values: TypeAlias = Mapping[str, tuple[str, ...]]


class Instrument(NamedTuple):
    """One row. Values of `labels` are given in this order; `buckets` are a histogram's upper bounds, in its unit.
    `over_workers` is how the gauges of several processes on one port become one. `values` has, by label, all that it
    says, where that is known; anything else is counted as `other` there."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    over_workers: Literal["sum", "min", "max"] = "sum"
    values: Values = {}
    start: float = 0.0
    """What a gauge says before anything has happened."""

    def from_the_start(self, servers: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """The series that exist before anything has happened, with these servers: each with each value that is known;
        a label that is open is empty there."""
        known = {SERVER: tuple(servers), **self.values}
        return product(*(known.get(label, ("",)) for label in self.labels))


SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From a proxied call on an idle machine to the request deadline."""
SHORT: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
"""For what should take a turn of the loop or a round trip to the store."""
LONG: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
"""For the life of a session."""
SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

SERVER_OPERATION: Final = "mcp_server_operation_duration_seconds"
CLIENT_OPERATION: Final = "mcp_client_operation_duration_seconds"
SERVER_SESSION: Final = "mcp_server_session_duration_seconds"

_OPERATION: Final = (
    "mcp_method_name",
    "gen_ai_tool_name",
    "error_type",
    "network_transport",
    "mcp_protocol_version",
)

ENDS: Final = (
    "delete",
    "idle",
    "operator",
    "unconfigured",
    "revoked",
    "initialize_failed",
    "initialize_malformed",
    "shutdown",
    "poisoned",
    "fenced",
    "gone",
    "ended",
)
"""Why a session ends; the last three are said by the store."""
REFUSED: Final = (
    "fenced",
    "gone",
    "ended",
    "exists",
    "finished",
    "too_new",
    "seq",
    "full",
    "away",
    "store_full",
    "dead",
    "inbox_full",
)
"""Why the store did not do it (`actors.ports.Refused`)."""
LETTERS: Final = (
    "deliver",
    "note",
    "attach",
    "recover",
    "end",
    "move",
    "take",
    "detach",
    "written",
    "held",
    "answer",
    "opened",
    "attached",
    "unrecorded",
    "events",
    "head",
    "released",
    "refused",
    "moved",
    "to_pool",
    "from_pool",
    "said",
    "heard",
    "came",
    "unknown",
)
"""Kinds of letters (`actors.cluster.letters.BODIES`); `unknown` is of a later version."""
PERMANENT: Final = ("backends", "catalogue", "mailer", "router", "expiry", "verifier", "sweeper")
"""Actors that are there from the start, and started again after a crash."""
TEMPORARY: Final = (
    "SessionActor",
    "LegacyUpstream",
    "ModernUpstream",
    "UpstreamDelete",
    "link",
    "exchanges",
    "broker",
    "Guest",
)
"""Those of which there is one for each session, connection or client."""
LISTENERS: Final = ("public", "admin")

_ROWS: Final = (
    Instrument(SERVER_OPERATION, "histogram", "Requests of clients, from acceptance to outcome", _OPERATION, SECONDS),
    Instrument(
        CLIENT_OPERATION,
        "histogram",
        "Requests to backends, from sending to outcome",
        (*_OPERATION, "server"),
        SECONDS,
    ),
    Instrument(
        SERVER_SESSION,
        "histogram",
        "Sessions, from initialize to their end",
        ("error_type", "network_transport", "mcp_protocol_version"),
        LONG,
    ),
    # Sessions and streams.
    Instrument(
        "stagedoor_sessions",
        "gauge",
        "Sessions in memory, by state and era; of the modern one clients that have connections of their own",
        ("state", "era"),
        values={"state": ("live",), "era": ("legacy", "modern")},
    ),
    Instrument("stagedoor_sessions_max", "gauge", "Sessions that there may be in memory at once"),
    Instrument(
        "stagedoor_sessions_ended_total",
        "counter",
        "Sessions that ended, by reason",
        ("reason",),
        values={"reason": ENDS},
    ),
    Instrument(
        "stagedoor_streams_open",
        "gauge",
        "Event streams with a connection",
        ("kind",),
        values={"kind": ("post", "get", "listen")},
    ),
    Instrument("stagedoor_streams_unrecorded_total", "counter", "Streams that went on without ids, the store away"),
    Instrument("stagedoor_requests_in_flight", "gauge", "Requests of clients that have no outcome yet"),
    Instrument("stagedoor_exchanges", "gauge", "Those of them that are modern requests"),
    Instrument("stagedoor_parked_calls", "gauge", "Suspended calls: they wait for answers of modern clients"),
    Instrument("stagedoor_events_replayed_total", "counter", "Events sent once more after a resume"),
    Instrument("stagedoor_events_lost_total", "counter", "Events that a log should have held and did not"),
    Instrument(
        "stagedoor_events_shed_total",
        "counter",
        "Events left out at a limit",
        ("kind",),
        values={"kind": ("message", "progress", "unread", "away", "full", "answer")},
    ),
    Instrument(
        "stagedoor_gaps_total",
        "counter",
        "Resumes and streams that were told of a hole",
        ("reason",),
        values={"reason": ("trimmed", "cap", "lost")},
    ),
    Instrument("stagedoor_records_restored_total", "counter", "Sessions whose record the store had lost", ()),
    Instrument("stagedoor_requests_continued_total", "counter", "Requests taken up after a loss", ("server",)),
    Instrument(
        "stagedoor_answers_dropped_total",
        "counter",
        "Outcomes that had no connection to go to",
        ("reason",),
        values={"reason": ("connection_gone", "unrecorded")},
    ),
    Instrument(
        "stagedoor_resumes_total",
        "counter",
        "GETs with Last-Event-ID",
        ("outcome",),
        values={"outcome": ("hit", "missed")},
    ),
    Instrument(
        "stagedoor_slow_consumers_total",
        "counter",
        "Streams detached since their reader was slow",
        ("kind",),
        values={"kind": ("post", "get", "listen")},
    ),
    Instrument("stagedoor_messages_dropped_total", "counter", "Messages that belonged to nothing", ("reason",)),
    Instrument(
        "stagedoor_tokens_refused_total",
        "counter",
        "Tokens of issuers that were not taken",
        ("reason",),
        values={"reason": REFUSALS},
    ),
    Instrument(
        "stagedoor_upstream_tokens_total",
        "counter",
        "Tokens for servers: got, renewed, refused by the server or its issuer, given back",
        (SERVER, "event"),
        values={"event": ("fetch", "refresh", "refused", "revoke")},
    ),
    Instrument(
        "stagedoor_account_connections_total",
        "counter",
        "Accounts of users at servers that were connected or disconnected, and visits to their pages that failed; the "
        "server is empty where the visit names none",
        (SERVER, "outcome"),
        values={"outcome": ("connected", "disconnected", "refused", "failed")},
    ),
    Instrument(
        "stagedoor_messages_rejected_total",
        "counter",
        "Requests of clients that were answered by a refusal of the gateway, by its kind",
        ("reason",),
        values={"reason": tuple(errors.KINDS)},
    ),
    Instrument(
        "stagedoor_list_changed_total",
        "counter",
        "list_changed to clients of aggregates: sent, or spared since the list is the same",
        ("list", "outcome"),
        values={"list": ("tools", "prompts", "resources"), "outcome": ("sent", "spared")},
    ),
    Instrument("stagedoor_lists_incomplete_total", "counter", "Merged lists given without this server", ("server",)),
    Instrument(
        "stagedoor_policy_decisions_total",
        "counter",
        "Calls that rules decided: allow, deny, step-up, or failed, which is denied; observed only, or enforced",
        ("outcome", "mode"),
        values={"outcome": ("allow", "deny", "step-up", "failed"), "mode": ("enforce", "observe")},
    ),
    Instrument(
        "stagedoor_pin_changes_total",
        "counter",
        "Definitions of this server that are not as they were accepted, once each: new, changed, widened, removed",
        ("server", "kind", "change"),
        values={
            "kind": ("tool", "prompt", "resource", "template", "instructions"),
            "change": ("new", "changed", "widened", "removed"),
        },
    ),
    Instrument(
        "stagedoor_pin_refusals_total",
        "counter",
        "Requests to this server that were refused, since what they name is not as it was accepted",
        ("server",),
    ),
    Instrument(
        "stagedoor_limit_decisions_total",
        "counter",
        "Calls, and requests at endpoints, that have limits: passed, refused, free (paid for before); where the store "
        "could not tell: open (a rate, passed) or closed (a quota, refused); observed only, or enforced",
        ("of", "outcome", "mode"),
        values={
            "of": ("call", "endpoint"),
            "outcome": ("passed", "refused", "free", "open", "closed"),
            "mode": ("enforce", "observe"),
        },
    ),
    Instrument("stagedoor_version_mismatches_total", "counter", "Version headers other than the negotiated one"),
    # The configuration.
    Instrument(
        "stagedoor_reloads_total",
        "counter",
        "Configurations that were read anew, by outcome",
        ("outcome",),
        values={"outcome": ("reloaded", "unchanged", "refused")},
    ),
    Instrument(
        "stagedoor_reload_success_timestamp_seconds",
        "gauge",
        "When what is in force was read, or found unchanged, last: seconds since 1970",
        over_workers="max",
    ),
    Instrument(
        "stagedoor_last_reload_successful",
        "gauge",
        "1 while what was read of the configuration file last is in force, 0 from when it was refused on",
        over_workers="min",
        start=1.0,
    ),
    # Actors and the loop.
    Instrument(
        "stagedoor_mailbox_depth",
        "gauge",
        "Messages waiting for an actor that all share",
        ("actor",),
        values={"actor": ("router", "catalogue", "backends")},
    ),
    Instrument(
        "stagedoor_mailbox_refusals_total",
        "counter",
        "Messages refused by a full mailbox",
        ("actor",),
        values={"actor": ("session", "exchanges")},
    ),
    Instrument(
        "stagedoor_actor_crashes_total",
        "counter",
        "Actors that ended by a fault of ours",
        ("actor",),
        values={"actor": (*PERMANENT, *TEMPORARY)},
    ),
    Instrument(
        "stagedoor_restarts_total",
        "counter",
        "Actors started again",
        ("actor",),
        values={"actor": (*PERMANENT, "SessionActor")},
    ),
    Instrument("stagedoor_scheduler_lag_seconds", "histogram", "How late the event loop runs a timer", (), SHORT),
    Instrument(
        "stagedoor_native_blocked_seconds",
        "histogram",
        "Handlers of in-process servers that kept the event loop to themselves for over 250 ms",
        ("server", "mcp_method_name", "gen_ai_tool_name"),
        SECONDS,
    ),
    Instrument("stagedoor_garbage_collection_seconds", "histogram", "Garbage collections, as pauses", (), SHORT),
    # Store and cluster.
    Instrument(
        "stagedoor_store_latency_seconds",
        "histogram",
        "Calls of the store",
        ("operation",),
        SHORT,
        values={"operation": ("batch",)},
    ),
    Instrument("stagedoor_store_batch_size", "histogram", "Commands that went out together", (), SIZES),
    Instrument(
        "stagedoor_store_errors_total",
        "counter",
        "Calls of the store that failed",
        ("operation", "reason"),
        values={"operation": ("save", "append"), "reason": REFUSED},
    ),
    Instrument("stagedoor_store_up", "gauge", "1 while the store answers", over_workers="min"),
    Instrument("stagedoor_fenced_writes_total", "counter", "Writes refused since another process owns the session"),
    Instrument(
        "stagedoor_takeovers_total",
        "counter",
        "Sessions brought into memory here: taken over from a dead process, at rest before, or after a crash of ours",
        ("reason",),
        values={"reason": ("takeover", "activation", "crash")},
    ),
    Instrument(
        "stagedoor_letters_sent_total", "counter", "Letters to other replicas", ("kind",), values={"kind": LETTERS}
    ),
    Instrument(
        "stagedoor_letters_received_total", "counter", "Letters of other replicas", ("kind",), values={"kind": LETTERS}
    ),
    Instrument("stagedoor_letters_refused_total", "counter", "Letters that did nothing", ("kind", "reason")),
    Instrument("stagedoor_inbox_depth", "gauge", "Letters of other replicas that wait in the store to be read"),
    Instrument("stagedoor_mail_seconds", "histogram", "Mail to an owner, to the first word of it", (), SECONDS),
    Instrument(
        "stagedoor_lease_age_seconds",
        "gauge",
        "Since the last heartbeat that the store acknowledged",
        over_workers="max",
    ),
    # Workers of one supervisor.
    Instrument(
        "stagedoor_workers",
        "gauge",
        "Workers by state: starting, ready, draining, silent",
        ("state",),
        values={"state": ("starting", "ready", "draining", "silent")},
    ),
    Instrument("stagedoor_worker_deaths_total", "counter", "Workers that ended unasked"),
    # Backends.
    Instrument(
        "stagedoor_backend_links",
        "gauge",
        "Upstream connections by state",
        ("server", "state"),
        values={"state": ("idle", "connecting", "ready", "waiting", "closing")},
    ),
    Instrument(
        "stagedoor_backend_up", "gauge", "1 ready, 0.5 degraded, 0 broken", ("server",), over_workers="min", start=1.0
    ),
    Instrument("stagedoor_backend_failures_total", "counter", "Connections that failed", ("server", "reason")),
    Instrument("stagedoor_backend_sessions_lost_total", "counter", "Sessions that a backend forgot", ("server",)),
    Instrument("stagedoor_backend_sessions_left_total", "counter", "Sessions left to a backend's timeout", ("server",)),
    Instrument("stagedoor_child_processes", "gauge", "Child processes alive", ("server",)),
    # Traces.
    Instrument("stagedoor_spans_exported_total", "counter", "Spans that the collector has taken"),
    Instrument(
        "stagedoor_spans_dropped_total",
        "counter",
        "Spans that nobody will see: the queue was full, or the collector did not take them",
        ("reason",),
        values={"reason": ("queue_full", "not_sent")},
    ),
    # Edge.
    Instrument("stagedoor_access_lines_dropped_total", "counter", "Lines that the access log could not take"),
    Instrument(
        "stagedoor_connections_open", "gauge", "Connections of clients", ("listener",), values={"listener": LISTENERS}
    ),
    Instrument(
        "stagedoor_connection_crashes_total",
        "counter",
        "Connections ended by a fault of ours",
        ("listener",),
        values={"listener": LISTENERS},
    ),
    Instrument(
        "stagedoor_http_responses_total",
        "counter",
        "Answers by method and status",
        ("method", "status"),
        values={"method": ("GET", "POST", "DELETE", "HEAD", "OPTIONS", OTHER)},
    ),
    Instrument("stagedoor_audit_lines_waiting", "gauge", "Lines of the audit trail that are not written yet"),
    Instrument(
        "stagedoor_audit_lines_lost_total",
        "counter",
        "Lines that a sink of the audit trail did not get",
        ("sink",),
        values={"sink": ("file", "syslog", "otlp")},
    ),
)

INSTRUMENTS: Final[dict[str, Instrument]] = {row.name: row for row in _ROWS}
