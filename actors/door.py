"""The door: what HTTP edges call. Classifies a message, finds its session, and waits for the outcome.

It runs in the edge's own task and keeps no state: cancelling a call means that the connection broke.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Raw, Struct

from actors.modern_door import ModernDoor
from actors.named import LIVES, Named
from actors.ports import UNAVAILABLE, Answer, Delete, Failed, Get, Post, Principal, Refused, Reply, Streaming
from actors.protocol import classify, errors
from actors.protocol.codec import Batch, Frame
from actors.protocol.errors import Malformed, ProtocolError
from actors.protocol.messages import EMPTY, Message, Notification, Request, RequestId
from actors.protocol.modern import headers, ladder, tasks
from actors.protocol.modern.meta import names_version
from actors.protocol.versions import MODERN_VERSIONS
from actors.runtime import ActorDown, MailboxFull, NotTaken, Ref
from actors.services import Services
from actors.sessions.router import Activate, OpenSession, Sessions, session_key
from actors.sessions.session_messages import EndSession, GetEvents, PostMessages, unanswered
from actors.streams.follower import Follower

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = headers.VERSION_HEADER.lower()
EVENT_HEADER = "last-event-id"


Bad: TypeAlias = tuple[tuple[RequestId | None, Raw], ...]
"""Members of a batch that could not be read: the id, if it could be, and the error."""


class SessionDoor:
    """Implements the port `Door`. One endpoint serves both eras: what is of the one without sessions goes on to
    `modern`."""

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        router: Named,
        modern: ModernDoor,
        overloaded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._modern = modern
        self._services = services
        self._overloaded = overloaded
        self._sessions = sessions
        self._router = router

    async def post(self, post: Post) -> Reply:
        """A POST: one message or a batch."""
        served = self._services.table.value.endpoints.get(post.endpoint)
        if served is None:
            return Answer.refusing(errors.refusal("endpoint_not_found"))
        one_server = served.kind == "transparent"
        session_id = post.headers.get(SESSION_HEADER)
        route = classify.classify_body(
            post.body,
            session_id,
            post.headers.get(VERSION_HEADER),
            limit=self._services.limits.message_bytes,
            modern=lambda frame, version: _modern_rung(frame, version, post.headers, one_server=one_server),
        )
        match route:
            case classify.Rejection(error, id):
                self._services.telemetry.count("stagedoor_messages_rejected_total", (error.kind,))
                return Answer.refusing(error, id)
            case classify.Initialize(request):
                return (
                    Answer.refusing(errors.overloaded(), request.id)
                    if self._overloaded()
                    else await self._open(post, request)
                )
            case classify.LegacyRequest(_, request):
                if self._overloaded():  # new work waits outside; work in hand goes on
                    return Answer.refusing(errors.overloaded(), request.id)
                return await self._deliver(post, session_id or "", (request,), request.id)
            case classify.LegacyNotification(_, notification):
                return await self._deliver(post, session_id or "", (notification,))
            case classify.LegacyResponse(_, response):
                return await self._deliver(post, session_id or "", (response,))
            case classify.LegacyBatch(_, batch):
                return await self._deliver_batch(post, session_id or "", batch)
            case classify.ModernRequest():
                return await self._modern.request(post, route)
            case classify.ModernNotification():
                return await self._modern.notification(post, route)

    async def get(self, get: Get) -> Reply:
        """A GET: a new event stream, or the rest of one. Where the session ended while its stream was looked for, that
        is done once more: whether it ended for good is found out by coming back."""
        reply = await self._get(get) or await self._get(get)
        return reply or Answer.refusing(errors.overloaded("the session is being restored"))

    async def _get(self, get: Get) -> Reply | None:
        """None: the session ended meanwhile, and its logs with it."""
        found = await self._find_checked(get)
        if not isinstance(found, Ref):
            return found
        cursor = get.headers.get(EVENT_HEADER)
        stream, epoch, seq = None, 0, 0
        if cursor is not None:
            parsed = parse_event_id(cursor)
            if parsed is None:
                return Answer.refusing(errors.bad_event_id())
            stream, epoch, seq = parsed
        try:
            outcome = await found.call(
                lambda reply: GetEvents(stream, epoch, seq, reply), self._services.limits.admission
            )
        except (MailboxFull, NotTaken):
            return Answer.refusing(errors.overloaded())
        except ActorDown as down:
            # What an actor crashes of may be this very message: it is not given to the next life at once.
            return Answer.refusing(errors.overloaded("the session is being restored")) if down.reason.abnormal else None
        return await self._begin(outcome, found) if isinstance(outcome, Follower) else outcome

    async def delete(self, delete: Delete) -> Answer:
        """A DELETE: the end of a session."""
        found = await self._find_checked(delete)
        if not isinstance(found, Ref):
            return found
        try:
            answer: Answer = await found.call(EndSession, self._services.limits.admission)
        except (MailboxFull, NotTaken):
            return Answer.refusing(errors.overloaded())
        except ActorDown as down:
            return Answer(200) if not down.reason.abnormal else Answer.refusing(errors.overloaded())
        return answer

    # Sessions

    async def _find_checked(self, request: Get | Delete) -> Ref | Answer:
        if request.endpoint not in self._services.table.value.endpoints:
            return Answer.refusing(errors.refusal("endpoint_not_found"))
        session_id = request.headers.get(SESSION_HEADER)
        rejection = classify.check_headers(session_id, request.headers.get(VERSION_HEADER))
        if rejection is not None:
            return Answer.refusing(rejection.error)
        found = await self._find(session_id or "", request.principal, request.endpoint)
        return Answer.refusing(found) if isinstance(found, ProtocolError) else found

    async def _find(self, session_id: str, principal: Principal, endpoint: str) -> Ref | ProtocolError:
        """The session's actor. A foreign session looks exactly like one that is not there."""
        key = session_key(session_id)
        alive = self._sessions.table.get(key)
        if alive is not None and alive.ref.alive:
            if alive.principal != principal or alive.endpoint != endpoint:
                return errors.session_not_found()
            return alive.ref
        try:
            found: Ref | ProtocolError = await self._router.call(
                lambda reply: Activate(key, principal, endpoint, reply), self._services.limits.admission
            )
        except (MailboxFull, NotTaken, ActorDown):
            return errors.draining() if self._sessions.draining else errors.overloaded()
        return found

    async def _open(self, post: Post, request: Request) -> Reply:
        try:
            opened = await self._router.call(
                lambda reply: OpenSession(post.principal, post.endpoint, reply), self._services.limits.admission
            )
        except (MailboxFull, NotTaken, ActorDown):
            return Answer.refusing(errors.draining() if self._sessions.draining else errors.overloaded(), request.id)
        if isinstance(opened, ProtocolError):
            self._services.telemetry.count("stagedoor_messages_rejected_total", (opened.kind,))
            return Answer.refusing(opened, request.id)
        ref, session_id = opened
        reply = await self._call(ref, _Letter((request,), id=request.id))
        return (
            _with_session(reply, session_id) if reply is not None else Answer.refusing(errors.overloaded(), request.id)
        )

    async def _deliver_batch(self, post: Post, session_id: str, batch: Batch) -> Reply:
        good = tuple(m for m in batch.messages if not isinstance(m, Malformed))
        bad = tuple((classify.echoed(m), m.error.raw) for m in batch.messages if isinstance(m, Malformed))
        return await self._deliver(post, session_id, good, batch=True, bad=bad)

    async def _deliver(
        self,
        post: Post,
        session_id: str,
        messages: tuple[Message, ...],
        id: RequestId | None = None,
        *,
        batch: bool = False,
        bad: Bad = (),
    ) -> Reply:
        letter = _Letter(messages, batch, bad, post.headers.get(VERSION_HEADER), id)
        for _ in range(LIVES):
            found = await self._find(session_id, post.principal, post.endpoint)
            if isinstance(found, ProtocolError):
                return Answer.refusing(found, id)
            reply = await self._call(found, letter)
            if reply is not None:
                return reply
        return Answer.refusing(errors.overloaded("the session is being restored"), id)

    async def _call(self, ref: Ref, letter: "_Letter") -> Reply | None:
        """The outcome; None if the actor had ended before it took the message: that may be given to its next life."""
        try:
            answer: Reply = await ref.call(
                lambda reply: PostMessages(letter.messages, letter.batch, letter.version, letter.bad, reply),
                self._services.limits.admission,
            )
        except (MailboxFull, NotTaken):
            self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("session",))
            return Answer.refusing(errors.overloaded(), letter.id)
        except ActorDown as down:
            if not down.taken:
                return None
            # It may have been given to a backend: said so, never tried again.
            return unanswered(letter.messages, batch=letter.batch)
        return answer

    # Resumption

    async def _begin(self, follower: Follower, session: Ref) -> Reply | None:
        """None: the session has ended."""
        begun = False
        try:
            failed = await follower.begin()
            begun = failed is None and follower.lost is None
        finally:
            if not begun:
                follower.close()
        if failed is None and not begun:
            failed = Failed(Refused.SEQ, "events were lost")
        if failed is None:
            self._services.telemetry.count("stagedoor_resumes_total", ("hit",))
            self._services.telemetry.count("stagedoor_events_replayed_total", (), follower.replayed)
            if follower.gap is not None:
                self._services.telemetry.count("stagedoor_gaps_total", ("trimmed",))
            return Streaming(follower)
        self._services.telemetry.count("stagedoor_resumes_total", ("missed",))
        return Answer.refusing(_resume_refusal(failed)) if session.alive else None


class _Letter(Struct, frozen=True):
    """What a POST brings to its session. `bad`: the members of a batch that could not be read."""

    messages: tuple[Message, ...]
    batch: bool = False
    bad: Bad = ()
    version: str | None = None
    id: RequestId | None = None


def _modern_rung(
    frame: Frame, version: str, headers: Mapping[str, str], *, one_server: bool
) -> classify.Route | classify.Rejection:
    """A header that nobody knows, over a body that names no revision, is more likely a client's of a session."""
    body = frame.params if isinstance(frame, Request | Notification) else EMPTY
    if version not in MODERN_VERSIONS and names_version(body) is None:
        return classify.refuse_modern(frame, version)
    return ladder.modern(frame, headers, extra_methods=tasks.METHODS, one_server=one_server)


def _with_session(reply: Reply, session_id: str) -> Reply:
    """The id goes on the response that carries the InitializeResult, and on no other."""
    header = (SESSION_HEADER, session_id)
    if isinstance(reply, Streaming):
        return Streaming(reply.source, (*reply.headers, header))
    if reply.status != 200 or b'"result"' not in reply.body:
        return reply  # initialize failed: there is no session
    return Answer(reply.status, reply.body, (*reply.headers, header))


def _resume_refusal(failed: Failed) -> ProtocolError:
    if failed.reason in UNAVAILABLE:
        return errors.store_full() if failed.reason is Refused.STORE_FULL else errors.store_away()
    if failed.reason is Refused.GONE:
        return errors.gap("expired")
    return errors.gap(failed.reason.value)


DIGITS = 19
"""Of a number in an event id: 64 bits."""


def parse_event_id(text: str) -> tuple[str, int, int] | None:
    """`<stream>:<epoch>-<seq>`, as the recorder writes it; None for anything else."""
    stream, colon, position = text.partition(":")
    epoch, dash, seq = position.partition("-")
    numbers = (stream[1:], epoch, seq)
    plain = all(n.isascii() and n.isdigit() and n[0] != "0" and len(n) <= DIGITS for n in numbers)
    if not colon or not dash or stream[:1] not in ("p", "g") or not plain:
        return None
    return stream, int(epoch), int(seq)
