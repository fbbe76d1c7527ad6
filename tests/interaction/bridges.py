"""What revision 2026-07-28 demands of the gateway, and what must hold between the eras: clause by clause.

Sources as in `requirements`; "2026" is revision 2026-07-28. In the texts a session is a client with one, a plain client
one without; a stateful server has sessions, a stateless one has none.
"""

from __future__ import annotations

from tests.interaction.clause import Clause

SESSIONLESS: dict[str, Clause] = {
    "modern-envelope": Clause(
        "Each request says revision and capabilities; its client need not be named", "2026 basic"
    ),
    "modern-post-only": Clause("GET and DELETE are 405", "2026 streamable-http"),
    "modern-trace": Clause("Trace context and foreign keys of _meta pass", "2026 basic, _meta"),
    "modern-result-type": Clause(
        "No result type is complete, an unknown one an error", "2026 basic, ResultType; decision"
    ),
    "modern-bounds": Clause("Requests too many are 429 with Retry-After", "decision"),
    "modern-deadline": Clause("A request has a deadline", "2026 basic; decision"),
}

METHODS: dict[str, Clause] = {
    "bridge-initialize": Clause("initialize is answered here, over servers of any kind", "decision"),
    "bridge-discover": Clause("server/discover is answered here, without waiting for servers", "2026 server/discover"),
    "bridge-ping": Clause("Pings are answered here and never forwarded", "basic/utilities/ping"),
    "bridge-lists": Clause("Every list passes between the eras", "decision"),
    "bridge-hints": Clause("Lists of stateful servers are stale at once, and private", "2026 caching; decision"),
    "bridge-calls": Clause("Calls, prompts and reads pass between the eras", "decision"),
    "bridge-completion": Clause("References lead back; without completion nothing is completed", "decision"),
    "bridge-unknown-method": Clause("What the era has not is -32601 with 404", "2026 streamable-http"),
    "bridge-subscribe": Clause("A session subscribes on stateless servers, or is told why not", "decision"),
    "bridge-session-listens": Clause("Changes of stateless servers reach sessions, untagged", "decision"),
    "bridge-listen": Clause("A plain client's subscription is granted as far as servers can", "2026 subscriptions"),
    "bridge-listen-refused": Clause("A malformed filter is an error, no stream is 406", "2026 subscriptions"),
    "bridge-unsubscribe": Clause("The last to leave ends the subscription at the server", "decision"),
    "bridge-relisten": Clause("A subscription upstream that ended is begun again, changes are announced", "decision"),
    "bridge-list-changed": Clause("Changes are told once, after what was kept is dropped", "2026 caching; decision"),
    "bridge-set-level": Clause("The level of a session goes with each request", "decision"),
    "bridge-log-level": Clause("The level of a request holds at a stateful server, for it alone", "2026 logging"),
    "bridge-log-message": Clause("Log messages come on the stream of their request", "2026 logging"),
    "bridge-shared-logs": Clause("What can not be told whose it is reaches nobody", "2026 stdio; decision"),
    "bridge-log-outside": Clause("Log messages outside of requests reach no plain client", "2026 logging"),
    "bridge-progress": Clause("Progress comes under the client's token", "progress"),
    "bridge-cancel": Clause("A session's cancel is said as the server's transport says it", "2026 cancellation"),
    "bridge-disconnect": Clause("A plain client's disconnect is a cancel at the server", "2026 cancellation"),
    "bridge-legacy-disconnect": Clause("A session's disconnect is none", "basic/transports"),
    "bridge-posted-cancel": Clause("A plain client's posted cancel is dropped", "2026 streamable-http"),
    "bridge-roots": Clause("Roots are asked for within a call", "client/roots"),
    "bridge-roots-changed": Clause("A change of roots is not told to stateless servers", "2026 client/roots"),
    "bridge-sampling": Clause("Sampling passes between the eras", "client/sampling"),
    "bridge-elicitation-complete": Clause("The end of an elicitation is not told to plain clients", "2026 elicitation"),
    "bridge-capabilities-passed": Clause("Between plain ends capabilities and rounds pass", "2026 patterns/mrtr"),
    "bridge-envelope": Clause("What a session knows is said with each request", "2026 basic, _meta"),
    "bridge-sticky": Clause("Requests that belong together meet the same server state", "decision"),
    "bridge-wrap": Clause("States of stateless servers are sealed, and come back exactly", "2026 patterns/mrtr"),
    "bridge-headers": Clause("Headers are checked inwards and made anew outwards", "2026 streamable-http"),
    "bridge-tool-headers": Clause("Tools with illegal headers are shown to nobody", "2026 server/tools"),
    "bridge-cache-private": Clause("What is private is never another's", "2026 caching"),
    "bridge-cache-public": Clause("What is public is asked for once while it is fresh", "2026 caching"),
    "bridge-not-cached": Clause("Answers of retries are not kept", "2026 caching"),
    "bridge-pages": Clause("Pages of all servers, of either era", "pagination"),
    "bridge-cursor": Clause("A cursor is for its method and its user", "pagination"),
    "bridge-old-server": Clause("Stateful servers of every revision are spoken to in their words", "changelogs"),
    "bridge-canonical-list": Clause("A plain client's lists come from one connection", "2026 server/tools, Listing"),
    "bridge-no-tasks": Clause(
        "Between the eras tasks of either form are declared to neither side", "basic/utilities/tasks; SEP-2663"
    ),
    "bridge-isolation": Clause("No exchange gets anything of another, whatever ids and tokens they use", "decision"),
}

PARKING: dict[str, Clause] = {
    "bridge-park": Clause("A question in a call is a round, and the call waits", "2026 patterns/mrtr"),
    "bridge-park-other-methods": Clause("So it is with prompts and reads", "2026 patterns/mrtr"),
    "bridge-partial": Clause("What was not answered is asked again, unknown keys are ignored", "2026 patterns/mrtr"),
    "bridge-malformed-answer": Clause("An answer that is none is -32602, and the call waits on", "decision"),
    "bridge-tampering": Clause("What was changed is -32602, and nothing runs", "2026 patterns/mrtr"),
    "bridge-foreign-state": Clause("What was given to another is -32602", "2026 patterns/mrtr"),
    "bridge-replay": Clause("A round is answered once", "2026 patterns/mrtr"),
    "bridge-abandoned": Clause("What nobody comes back for is cancelled and its questions answered", "decision"),
    "bridge-parked-disconnect": Clause("A retry that breaks is a cancel; between rounds nothing is", "decision"),
    "bridge-parked-lost": Clause("With its server the parked call ends", "decision"),
    "bridge-parked-room": Clause("A parked call too many is -32603", "decision"),
    "bridge-overflow": Clause("While a call is parked others go elsewhere, or wait, or are told so", "decision"),
    "bridge-stuck": Clause("A server that does not settle after a cancel is left", "decision"),
    "bridge-rebound": Clause("Progress and logs are those that the retry wants", "2026 patterns/mrtr"),
    "bridge-restart": Clause("After a restart a parked call is gone and not run again", "decision"),
    "bridge-url-required": Clause(
        "-32042 is a question, its retry a new call; or -32021", "client/elicitation; decision"
    ),
    "bridge-unasked": Clause("A question without a call is answered with an error at once", "SEP-2260"),
    "bridge-undeclared": Clause("So is one that the client did not declare", "2026 patterns/mrtr"),
    "bridge-input-elsewhere": Clause("On lists and completion nothing is asked", "2026 patterns/mrtr"),
}

DRIVING: dict[str, Clause] = {
    "bridge-loop": Clause(
        "A session is asked on its call's stream, all at once; then the call is made again", "decision"
    ),
    "bridge-loop-waits": Clause("A state without questions is tried again after a while", "2026 patterns/mrtr"),
    "bridge-rounds-cap": Clause("Rounds without end end with -32603", "decision"),
    "bridge-refusals": Clause("Declined forms pass; an error for a form is a cancel", "decision"),
    "bridge-error-answers": Clause("Other errors of the client end the call", "2026 client/sampling; decision"),
    "bridge-session-ended": Clause("A session that ends abandons its call", "2026 patterns/mrtr"),
    "bridge-missing-capability": Clause("-32021 is -32600 with the same data for a session", "decision"),
    "bridge-old-client": Clause("What a session's revision has not is not declared", "decision"),
    "bridge-url-mode": Clause("A page is shown once under an id of ours, waited for, and its end told", "decision"),
    "bridge-mismatch": Clause("-32020: the schema is fetched and the request made once more", "2026 streamable-http"),
}

WORDS: dict[str, Clause] = {
    "bridge-server-info": Clause("Merged results name the gateway, others their server", "2026 basic, _meta; decision"),
    "bridge-strip-execution": Clause("Tools have no execution for plain clients", "2026 changelog"),
    "bridge-lower-structured": Clause("Structured results that are no objects become text", "2026 changelog; decision"),
    "bridge-lower-content": Clause(
        "Content that a session's revision has not is said otherwise", "changelogs; decision"
    ),
    "bridge-lower-questions": Clause("Questions are asked in the session's words", "changelogs; decision"),
    "bridge-not-found": Clause("A missing resource: -32002 in sessions, -32602 without", "2026 changelog"),
    "bridge-codes": Clause("Codes that the era reserves become -32603, the others pass", "2026 basic, Error Codes"),
}

LOSSES: dict[str, Clause] = {
    "bridge-probe": Clause("The era of a server is found out once, whatever it answers", "2026 versioning; decision"),
    "bridge-dual": Clause("A server of both eras is used in that of the client", "2026 versioning; decision"),
    "bridge-rolled-back": Clause("A server that changed its era is found out again; nothing runs twice", "decision"),
    "bridge-renegotiated": Clause("-32022 is never shown; it is renegotiated once", "2026 versioning; decision"),
    "bridge-session-lost": Clause(
        "404: a new session, the request once more, changes announced", "transports; decision"
    ),
    "bridge-broken-stream": Clause(
        "A broken answer: tools fail, reads are made once more", "2026 streamable-http; decision"
    ),
    "bridge-backend-exit": Clause("The end of a server fails what was in flight, and it comes back", "decision"),
    "bridge-backend-401": Clause("A server's challenge is -32603", "security best practices; decision"),
    "bridge-backend-5xx": Clause("5xx is -32603 and teaches nothing of the era", "2026 versioning; decision"),
    "bridge-timeout": Clause("A timeout cancels upstream too", "2026 cancellation; decision"),
    "bridge-nonsense": Clause("Nonsense fails the request that it is for", "basic/transports; decision"),
    "bridge-odd-servers": Clause("What a stateless server should not say reaches nobody", "2026 basic; decision"),
    "bridge-list-partial": Clause("A dead server empties no list; all dead are an error", "decision"),
    "bridge-no-capability": Clause("What a plain client can not do is -32021 with 400, or no question", "2026 basic"),
    "bridge-resumption": Clause("There is no resumption without a session", "2026 streamable-http"),
}

BRIDGES: dict[str, Clause] = {**METHODS, **PARKING, **DRIVING, **WORDS, **LOSSES}
