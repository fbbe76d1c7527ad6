"""Mistakes that gateways make, as statements of what must hold instead; those of both eras.

Sources as in `requirements`; "2026" is revision 2026-07-28.
"""

from __future__ import annotations

from tests.interaction.clause import Clause

PITFALLS: dict[str, Clause] = {
    "pitfall-1": Clause(
        "initialize is answered with a handshake revision, whatever it asks for, and the session works",
        "basic/lifecycle; 2026 versioning, Backward Compatibility",
    ),
    "pitfall-2": Clause(
        "The era of a message is told by its method and body first, its header second; what disagrees is refused",
        "2026 streamable-http, Protocol Version Header, Server Validation; basic, _meta",
    ),
    "pitfall-3": Clause(
        "A broken connection cancels a request without a session, and nothing of one with a session",
        "basic/transports, Sending 6; 2026 streamable-http, Cancellation",
    ),
    "pitfall-4": Clause(
        "Without a session, what is refused has its HTTP status, also where a stream is accepted",
        "2026 streamable-http, Protocol Version Header; basic, Per-request fields",
    ),
    "pitfall-5": Clause("Work in flight is told apart by its exchange, never by its id", "2026 basic, Requests"),
    "pitfall-6": Clause(
        "Ids and progress tokens of clients are not used upstream, and no id twice",
        "basic, Requests; utilities/progress",
    ),
    "pitfall-7": Clause(
        "What servers say is delivered once in a session, and once on each subscription, under its own id",
        "basic/transports, Multiple Connections; 2026 subscriptions, Multiple Concurrent",
    ),
    "pitfall-8": Clause(
        "A resume yields later events of its stream alone; event ids are unique over the session",
        "basic/transports, Resumability",
    ),
    "pitfall-9": Clause("No response comes on a GET stream that resumes nothing", "basic/transports, Listening 4"),
    "pitfall-10": Clause(
        "Priming and early closes are for sessions of 2025-11-25 alone", "basic/transports, Sending 6; SEP-1699"
    ),
    "pitfall-11": Clause(
        "404 for an unknown, ended or foreign session, 400 for none; as a client: a new session upon 404",
        "basic/transports, Session Management; security best practices, Hijacking",
    ),
    "pitfall-12": Clause(
        "Notifications and responses are accepted with 202 and no body", "basic/transports, Sending Messages 4"
    ),
    "pitfall-13": Clause(
        "A foreign Origin is 403 on every method, no Origin passes",
        "basic/transports, Security Warning; 2026 streamable-http, Security",
    ),
    "pitfall-14": Clause("Arrays are for 2025-03-26 alone", "2025-03-26 basic, Batching; 2025-06-18 changelog"),
    "pitfall-15": Clause(
        "The era of a server is not told by one code: any answer but a modern one leads to initialize, and what never "
        "reached it proves nothing",
        "2026 stdio and streamable-http, Backward Compatibility",
    ),
    "pitfall-16": Clause("Before the era is known nothing is executed", "2026 stdio, Backward Compatibility"),
    "pitfall-17": Clause(
        "One connection to a server keeps to the era of its first request that was answered", "2026 versioning"
    ),
    "pitfall-18": Clause(
        "Headers that repeat the body are checked when they come, and made anew when they go",
        "2026 streamable-http, Server Validation, Value Encoding",
    ),
    "pitfall-19": Clause(
        "A tool with an illegal x-mcp-header is left out and logged, the others stay",
        "2026 streamable-http, Schema Extension; server/tools, x-mcp-header",
    ),
    "pitfall-20": Clause(
        "Capabilities and log level of one request count for no other, nor do log lines reach another principal",
        "2026 basic, Statelessness; server/utilities/logging",
    ),
    "pitfall-21": Clause(
        "A retry goes on with the call that waits; a server with sessions runs it once", "2026 patterns/mrtr"
    ),
    "pitfall-22": Clause(
        "A requestState counts once, in time, for its principal, its method and its arguments; it reaches a server "
        "exactly as that gave it out",
        "2026 patterns/mrtr, Server Requirements",
    ),
    "pitfall-23": Clause(
        "Input is required on three methods only, of declared kinds and modes only",
        "2026 patterns/mrtr, Supported Requests; client/elicitation, Capabilities",
    ),
    "pitfall-24": Clause(
        "No field and no code of one era is seen by a client of the other", "2026 basic, Error Codes, ResultType"
    ),
    "pitfall-25": Clause(
        "A subscription begins with what is honoured, is tagged with its own typed id, and says nothing unasked",
        "2026 patterns/subscriptions; cancellation",
    ),
    "pitfall-26": Clause(
        "After a loss upstream everything watched is in force again and announced as changed",
        "2026 subscriptions, Graceful Closure; basic/transports, Session Management 4",
    ),
    "pitfall-27": Clause(
        "What is private to one authorization is kept for no other; pages of a listing agree; answers of retries are "
        "not kept; a change drops what is kept",
        "2026 server/utilities/caching",
    ),
    "pitfall-28": Clause(
        "An empty cursor is one; a foreign cursor is -32602; a listing over many servers ends, each item once",
        "2026 server/utilities/pagination, Implementation Guidelines",
    ),
    "pitfall-29": Clause(
        "A client's token goes nowhere and is asked for each time; a server's challenge is not handed on",
        "basic/authorization, Token Handling; security best practices, Token Passthrough",
    ),
    "pitfall-30": Clause(
        "A server's question is seen by whoever's call raised it, never hangs, and ends with its call",
        "SEP-2260; basic/utilities/cancellation; client/elicitation, Security",
    ),
    # In brief
    "pitfall-sub-resource": Clause("An update may name a part of what was subscribed", "server/resources, schema"),
    "pitfall-posted-cancel": Clause(
        "A posted cancel is 202 and cancels nothing in the era without sessions", "2026 streamable-http"
    ),
    "pitfall-progress": Clause("Progress of one token rises, and ends before the response", "progress, Progress Flow"),
    "pitfall-garbage": Clause("Garbage on stdout kills no connection; stderr is no failure", "basic/transports, stdio"),
    "pitfall-tool-errors": Clause("isError stays a result; an unknown tool is -32602", "server/tools, Error Handling"),
    "pitfall-cancelled-post": Clause("A cancelled POST of a session ends", "basic/utilities/cancellation, Behavior"),
    "pitfall-error-bodies": Clause("An error without an id answers its POST", "basic, Error Responses"),
    "pitfall-version-header": Clause(
        "Another supported handshake revision in the header changes nothing; an unsupported one is 400",
        "basic/transports, Protocol Version Header",
    ),
    "pitfall-one-origin": Clause("Two servers on one origin are used each in its era", "2026 versioning; decision"),
    "pitfall-extensions": Clause("extensions in an initialize survive, with their settings", "SEP-2133"),
    "pitfall-error-answers": Clause(
        "A client's error is never put among answers", "2026 client/sampling, Error Handling"
    ),
    "pitfall-task-errors": Clause(
        "A task whose result has isError: failed in 2025-11-25, completed in the extension",
        "tasks, Task Status; SEP-2663",
    ),
}
