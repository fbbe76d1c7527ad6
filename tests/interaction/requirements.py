"""What is demanded of the gateway: clause by clause, with its source. The clauses here are of the era with sessions;
`bridges` has those of the era without and of what is between them, `pitfalls` those of both that are often broken.

A test says which clauses it proves by `@pytest.mark.requirement(id, …)`; `ELSEWHERE` names the tests of other folders
that prove one. `test_requirements.py` holds both sides against each other.

Sources: pages of the MCP specification, revision 2025-11-25 where none is named; SEP numbers; `decision` for what the
specification leaves open and the gateway has settled.
"""

from __future__ import annotations

from tests.interaction.bridges import BRIDGES, SESSIONLESS
from tests.interaction.clause import Clause
from tests.interaction.pitfalls import PITFALLS

BASIC: dict[str, Clause] = {
    "ids-typed": Clause("1 and '1' are two ids; an id is echoed exactly", "basic, Requests"),
    "ids-fresh-upstream": Clause("A session backend never sees an id twice", "basic, Requests"),
    "ids-not-forwarded": Clause("The client's id is not used upstream", "basic, Requests"),
    "id-in-flight": Clause("An id that is in flight is refused; the first request is unharmed", "basic, Requests"),
    "one-answer": Clause("A request has exactly one outcome", "basic, Responses"),
    "notifications-not-answered": Clause("A notification is never answered", "basic, Notifications"),
    "unknown-method": Clause("An unknown method is -32601; a server alone gets what only it knows", "basic; decision"),
    "transparent-requests": Clause("Peers of one revision have methods that only they know", "decision"),
    "transparent-questions": Clause("… also of the server, and the client itself refuses what it can't", "decision"),
    "transparent-notifications": Clause("… and notifications, both ways", "decision"),
    "transparent-capabilities": Clause("A server alone hears all that its client declares", "decision"),
    "transparent-errors": Clause("Its errors are the client's, whatever the code", "decision"),
    "transparent-extensions": Clause("A type of result passes if both ends declared its extension", "SEP-2133"),
    "url-never-lost": Clause("A page that the user must open is told in words to who can't be asked", "decision"),
    "params-always": Clause("A request without params is written with empty ones", "decision"),
    "unanswerable": Clause("Late or stray messages are dropped", "basic/utilities/cancellation; progress"),
    "stray-response": Clause("A response to no request of ours is refused with 400", "basic/transports; decision"),
    "meta-untouched": Clause("Unknown members and `_meta` keys pass as they are", "basic, _meta"),
    "bad-body": Clause(
        "A body that is no message: 400 with -32700, -32600 or -32602", "basic/transports; JSON-RPC 2.0"
    ),
    "batch": Clause("2025-03-26: an array of requests gets one response for each", "2025-03-26 basic, Batching"),
    "batch-refused": Clause("No empty, mixed, or initialize-bearing arrays", "2025-03-26 basic; lifecycle"),
    "batch-other-revisions": Clause("In any other revision an array is 400/-32600", "2025-06-18 changelog"),
    "batch-from-backend": Clause("A backend's batch is unpacked", "2025-03-26 basic, Batching"),
}

LIFECYCLE: dict[str, Clause] = {
    "version-echoed": Clause("A supported revision is echoed", "basic/lifecycle, Version Negotiation"),
    "version-fallback": Clause("Any other is answered with the newest handshake one", "lifecycle, Version Negotiation"),
    "version-lower-side": Clause("Each side negotiates alone; features go by the lower", "lifecycle, Operation"),
    "backend-unknown-version": Clause("A backend's unknown revision is an error", "lifecycle, Version Negotiation"),
    "initialized-before-requests": Clause("`initialized` is accepted before any request", "lifecycle, Initialization"),
    "dead-backend-at-initialize": Clause("A dead backend fails its own endpoint, no aggregate", "decision"),
    "requests-before-initialized": Clause("Requests after the answer are served at once", "lifecycle, Initialization"),
    "second-initialize": Clause("A second initialize is -32600", "lifecycle; decision"),
    "initialize-not-cancellable": Clause("initialize can't be cancelled", "basic/utilities/cancellation"),
    "malformed-initialize": Clause("A malformed initialize makes no session", "lifecycle"),
    "backend-requests-before-ready": Clause("A backend may only ping before it is ready", "lifecycle, Initialization"),
    "deadline": Clause("A request has a deadline; progress moves it, a cap stays", "lifecycle, Timeouts"),
    "capabilities-open": Clause("Unknown capabilities are no failure", "lifecycle, Capability Negotiation"),
    "capability-absent": Clause("Undeclared server features are -32601", "lifecycle, Operation"),
    "capability-absent-client": Clause("An aggregate asks no client what it did not declare", "lifecycle, Operation"),
    "capabilities-declared-upstream": Clause("A backend is told what this client can do", "lifecycle; decision"),
    "capabilities-superset": Clause("An aggregate declares what any backend may have", "decision"),
    "instructions-merged": Clause("An aggregate's instructions name each backend", "decision"),
    "extensions-survive": Clause("`extensions` keep their settings", "SEP-2133"),
    "transparent-hello": Clause("A backend alone introduces itself", "decision"),
    "tasks-not-declared": Clause("Tasks are declared where both ends have them in one form", "basic/utilities/tasks"),
}

HTTP: dict[str, Clause] = {
    "post-accept": Clause("A POST must accept JSON and event streams (406)", "basic/transports, Sending Messages"),
    "post-content-type": Clause("A POST must be JSON (415)", "basic/transports; decision"),
    "post-202": Clause("Notifications and responses: 202, no body", "basic/transports, Sending Messages 4"),
    "body-too-large": Clause("A body over the limit is 413", "decision"),
    "methods-and-paths": Clause("405 with Allow; 404 for other paths", "basic/transports"),
    "get-accept": Clause("A GET must accept event streams", "basic/transports, Listening 2"),
    "get-too-many": Clause("A GET stream too many is 409", "decision"),
    "get-unrelated": Clause(
        "GET carries what belongs to no request; it waits for one", "basic/transports, Listening 4"
    ),
    "get-no-response": Clause("No response on a GET stream that is no resume", "basic/transports, Listening 4"),
    "one-stream-each": Clause("A message goes on exactly one stream", "basic/transports, Multiple Connections"),
    "answer-json": Clause("A result that comes first is plain JSON", "basic/transports, Sending Messages 5; decision"),
    "answer-stream": Clause("Messages before it, or 250 ms, make it a stream", "basic/transports, Sending 6; decision"),
    "priming": Clause("Id and empty data first, for 2025-11-25 and no older", "SEP-1699"),
    "no-early-close": Clause("A stream is not closed before its response", "2025-06-18 basic/transports"),
    "keep-alive": Clause("Comments on a silent stream", "decision"),
    "stream-headers": Clause("Streams are not cached nor buffered", "decision"),
    "resume": Clause("GET with Last-Event-ID goes on after that event", "basic/transports, Resumability"),
    "resume-own-stream": Clause("Only events of that stream are replayed", "basic/transports, Resumability"),
    "resume-refused": Clause("A malformed or unknown event id is 400, no events", "basic/transports; decision"),
    "resume-foreign": Clause("An event id of another session yields nothing", "basic/transports, Resumability"),
    "resume-gap": Clause("A resume past what is kept is an explicit gap", "decision"),
    "replay-after-finish": Clause("A finished stream can be read again", "basic/transports, Resumability"),
    "event-ids-unique": Clause("Event ids are unique over the session", "basic/transports, Resumability 1"),
    "superseded": Clause("A newer connection of a stream closes the older", "decision"),
    "disconnect-no-cancel": Clause("A broken connection cancels nothing", "basic/transports, Sending Messages 6"),
    "slow-consumer": Clause("A reader that stalls is let go, in order, and harms nobody", "decision"),
    "log-caps": Clause("Chatter past the caps is left out, answers are not", "decision"),
    "session-id-on-initialize": Clause("The id comes with the InitializeResult", "transports, Session Management 1"),
    "session-id-random": Clause("Ids are long, random, visible ASCII", "transports, Session Management 1"),
    "session-missing": Clause("No session id: 400", "transports, Session Management 2"),
    "session-unknown": Clause("Unknown session id: 404", "transports, Session Management 3"),
    "session-foreign": Clause("A foreign session looks like an unknown one", "security best practices, Hijacking"),
    "session-no-authentication": Clause("A session id is no authentication", "security best practices, Hijacking"),
    "session-endpoint": Clause("A session belongs to its endpoint", "decision"),
    "session-delete": Clause("DELETE ends the session, then 404", "transports, Session Management 5"),
    "session-room": Clause("A session too many is 503 with Retry-After", "decision"),
    "session-idle": Clause("An idle session ends; a stream is activity", "decision"),
    "session-passivated": Clause("A session that left memory comes back", "decision"),
    "version-header-absent": Clause("Without the header the negotiated revision holds", "transports, Version Header"),
    "version-header-mismatch": Clause("Another supported one changes nothing", "transports, Version Header; decision"),
    "version-header-unsupported": Clause("An unsupported one is 400", "transports, Protocol Version Header"),
    "modern-refused": Clause("A request of a revision to come is told which there are", "2026-07-28 versioning"),
    "origin-and-host": Clause("Foreign Origin or Host: 403 on every method", "basic/transports, Security Warning"),
    "preflight": Clause("Browsers' preflights are answered for allowed origins", "decision"),
    "token-each-request": Clause("Every request must bring its token (401)", "basic/authorization, Token Requirements"),
    "token-passthrough": Clause(
        "A client's token never reaches a backend", "security best practices, Token Passthrough"
    ),
    "too-many-requests": Clause("Requests too many in flight: 429 with Retry-After", "decision"),
    "overload": Clause("New work of an overloaded gateway is 503, work in hand goes on", "decision"),
    "draining": Clause("A draining gateway takes no session and ends its work", "decision"),
    "drain-streams": Clause("`retry:` before a close by us; calls in hand are finished", "SEP-1699; decision"),
    "http-errors-typed": Clause("A refused request harms no other", "decision"),
}

FEATURES: dict[str, Clause] = {
    "ping": Clause("Pings are answered here, both ways, at any time", "basic/utilities/ping"),
    "progress": Clause("Progress comes to those who gave a token", "basic/utilities/progress"),
    "tokens-not-forwarded": Clause("The client's token is not used upstream", "basic/utilities/progress"),
    "progress-isolated": Clause("Equal tokens of two sessions are not mixed up", "basic/utilities/progress"),
    "progress-rises": Clause(
        "Progress rises, of one server as it says it, and ends with the response", "progress, Flow"
    ),
    "client-progress": Clause("A client's progress reaches the backend that asked", "basic/utilities/progress"),
    "cancel": Clause("A cancel reaches the call that it names", "basic/utilities/cancellation"),
    "cancel-only-that": Clause("… of this session, and nothing else", "basic/utilities/cancellation"),
    "cancel-malformed": Clause("A cancel of nothing is ignored", "basic/utilities/cancellation, Error Handling"),
    "cancelled-post-ends": Clause("A cancelled POST ends with -32800", "cancellation, Behavior; decision"),
    "pagination": Clause("All pages of all backends, each item once", "server/utilities/pagination"),
    "cursor-empty": Clause("An empty cursor is a cursor", "server/utilities/pagination"),
    "cursor-forged": Clause("A forged or foreign cursor is -32602", "server/utilities/pagination, Error Handling"),
    "cursor-stale": Clause("A cursor of a former list is -32602", "server/utilities/pagination; decision"),
    "log-levels": Clause("The level is the session's; what is below is left out", "server/utilities/logging"),
    "log-level-to-backends": Clause("Backends are told the level, later ones too", "server/utilities/logging"),
    "log-related": Clause("Log messages come on the stream of their call", "basic/transports, Sending Messages 6"),
    "tools-list": Clause("Tools are listed with all their members", "server/tools"),
    "tools-call": Clause("Content of every kind passes", "server/tools"),
    "tool-errors": Clause("isError stays a result; an unknown tool is -32602", "server/tools, Error Handling"),
    "unlisted-callable": Clause("A backend alone: what is not listed can be called", "decision"),
    "resources-list": Clause("Resources and templates are listed", "server/resources"),
    "resources-read": Clause("A resource is read, by URI or by template", "server/resources"),
    "templates-route": Clause("A URI made from a template leads to its backend", "server/resources; decision"),
    "resource-not-found": Clause("A missing resource is -32002 with its URI", "server/resources, Error Handling"),
    "subscribe": Clause("Updates reach those who subscribed", "server/resources, Subscriptions"),
    "updated-sub-resource": Clause("An update may name a part of what was subscribed", "server/resources, schema"),
    "list-changed": Clause("list_changed reaches the client, once a kind", "server/tools, List Changed Notification"),
    "prompts": Clause("Prompts are listed and got; an unknown one is -32602", "server/prompts"),
    "completion": Clause("Arguments are completed; an unknown ref is -32602", "server/utilities/completion"),
    "sampling": Clause("Sampling passes both ways", "client/sampling"),
    "sampling-tools": Clause("Sampling with tools too", "client/sampling, Tools"),
    "roots": Clause("Roots are asked for and given", "client/roots"),
    "roots-changed": Clause("A change of roots reaches this session's backends", "client/roots"),
    "elicitation-form": Clause("Forms pass both ways", "client/elicitation"),
    "elicitation-label": Clause("An elicitation says which server asks", "client/elicitation, Security"),
    "elicitation-url": Clause("URL mode passes", "client/elicitation, URL Mode"),
    "elicitation-complete": Clause("Its completion comes to this client only", "client/elicitation, Completion"),
    "url-required": Clause("-32042 to those who can open a URL, words to others", "client/elicitation; decision"),
    "client-errors-pass": Clause("An error of the client reaches the backend", "client/sampling, Error Handling"),
    "client-nonsense": Clause("A client's odd answer is the backend's to judge", "decision"),
    "server-request-on-call-stream": Clause("Questions come on the stream of their call", "SEP-2260"),
    "server-request-outside-call": Clause("Without a call: the GET stream, or an error soon", "SEP-2260; decision"),
    "server-request-session-ended": Clause("The end of a session ends its questions", "decision"),
    "attribution": Clause("Questions reach exactly the session whose call raised them", "client/elicitation, Security"),
    "lease": Clause("Where nothing relates messages, one call at a time", "decision"),
    "withdraw": Clause("A call that ends takes its questions back", "basic/utilities/cancellation"),
    "isolation": Clause("No session gets anything of another", "security best practices"),
}

AGGREGATION: dict[str, Clause] = {
    "aggregate-names": Clause(
        "Names are prefixed, allowed, unique, and lead back", "server/tools, Tool Names; decision"
    ),
    "lists-merged": Clause("Lists keep the order of the backends", "decision"),
    "list-partial": Clause("A dead backend empties no list; none alive is an error", "decision"),
    "last-known-list": Clause("The last list known is served meanwhile", "decision"),
    "filters": Clause("Filtered tools are neither listed nor called", "decision"),
    "shared-backend": Clause("A shared backend is told no capabilities", "decision"),
    "config-change": Clause("The table of backends can change while running", "decision"),
    "groups": Clause("A group serves its backends and no others", "decision"),
    "lowering-results": Clause("Results are said in what an older client can read", "changelogs; decision"),
    "lowering-requests": Clause("Questions are asked in words of an older client", "changelogs; decision"),
    "lowering-upstream": Clause("An older backend is spoken to in its words", "changelogs; decision"),
    "no-modern-fields": Clause("Nothing of the next era is made up", "2026-07-28 changelog"),
}

BACKENDS: dict[str, Clause] = {
    "backend-exit": Clause("A backend that ends is an explicit error at once", "decision"),
    "backend-returns": Clause("… and comes back by itself", "decision"),
    "backend-down": Clause("One that can't be reached is an error to its callers only", "decision"),
    "backend-nonsense": Clause("Nonsense fails at most the call it belongs to", "basic/transports, stdio; decision"),
    "backend-asks-nonsense": Clause("Every question of a backend is answered once", "JSON-RPC 2.0"),
    "backend-too-large": Clause("An answer over the limit fails its call", "decision"),
    "backend-floods": Clause("A flood reaches only its own session", "decision"),
    "backend-errors-pass": Clause("A backend's error passes with code and data", "basic, Responses"),
    "stdio-stderr": Clause("stderr is logged, garbage on stdout survived", "basic/transports, stdio"),
    "stdio-groups": Clause("Children end with their whole group", "lifecycle, Shutdown; decision"),
    "http-session-lost": Clause(
        "404: a new session, the refused request once more", "transports, Session Management 4"
    ),
    "http-error-bodies": Clause("An HTTP error answers its POST, id or none", "basic, Responses; transports"),
    "http-version-header": Clause(
        "The revision is named in every later request", "transports, Protocol Version Header"
    ),
    "http-resume": Clause("A broken stream of a backend is resumed", "basic/transports, Resumability"),
    "restored-level": Clause("After a loss the level is in force again", "transports, Session Management 4"),
    "restored-subscriptions": Clause(
        "… and the subscriptions; changes are announced", "transports, Session Management 4"
    ),
}

STORE: dict[str, Clause] = {
    "restart-session": Clause("Sessions outlive the process", "decision"),
    "restart-stream": Clause("… and so do streams", "basic/transports, Resumability; decision"),
    "restart-in-flight": Clause("What was in flight gets one explicit outcome", "decision"),
    "restart-subscriptions": Clause("Subscriptions are in force again", "decision"),
    "restart-question": Clause("Answers to questions of a former life harm nothing", "decision"),
    "restart-killed": Clause("A process that was killed loses no session", "decision"),
    "store-away": Clause("A store that is away delays, and loses nothing", "decision"),
    "store-holds-no-secrets": Clause("No session id is stored", "security best practices, Hijacking"),
}

REQUIREMENTS: dict[str, Clause] = {
    **BASIC,
    **LIFECYCLE,
    **HTTP,
    **FEATURES,
    **AGGREGATION,
    **BACKENDS,
    **STORE,
    **SESSIONLESS,
    **BRIDGES,
    **PITFALLS,
}

ELSEWHERE: dict[str, str] = {
    "preflight": "tests/gateway/http/test_app.py::test_a_preflight_grants_what_the_script_asks",
    "http-resume": "tests/gateway/backends/test_streamable_http.py"
    "::test_a_stream_broken_after_an_event_id_is_resumed_by_get_until_the_response",
    "pitfall-task-errors": "tests/protocol/modern/test_tasks.py"
    "::test_what_a_backend_says_of_a_task_is_complete_and_under_the_clients_id",
    "stdio-groups": "tests/e2e/test_run.py::test_a_signal_ends_it_with_status_0_and_no_child_left",
    "restart-killed": "tests/e2e/test_restart.py::test_a_client_goes_on_after_a_restart_with_its_session_and_streams",
}
"""Clause → the test of another folder that proves it."""
