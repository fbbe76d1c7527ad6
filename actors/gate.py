"""What HTTP edges call: classifies a message, finds the actor that serves it, and waits for the outcome.

It runs in the edge's own task and keeps no state: cancelling a call means that the connection broke, which is the
cancellation of a modern request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from secrets import randbits
from typing import Any, NamedTuple, TypeAlias, assert_never

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.audit_lines import who_asks_often
from actors.cluster import letters as lt
from actors.cluster.feeds import Feed, MailFeed, OutboxFeed
from actors.cluster.followed import FollowedStream, HeldStream, Search, Unanswered
from actors.cluster.remote import RemoteSession
from actors.modern.requests import Begin, Granted, Inform, Kind, ModernRequests, end_of, refused
from actors.named import LIVES, NamedRef
from actors.ports import (
    NO_RIGHTS,
    UNAVAILABLE,
    Answer,
    Delete,
    Failed,
    Get,
    Post,
    PostObserver,
    Principal,
    Refused,
    Replica,
    Reply,
    Rights,
    SessionKey,
    Streaming,
    Where,
    ignore,
)
from actors.protocol import classify, classify_modern, codec, errors, headers, limiting, modern_tasks
from actors.protocol.codec import Frame
from actors.protocol.errors import Malformed, ProtocolError
from actors.protocol.messages import EMPTY, Message, Notification, Request, RequestId
from actors.protocol.meta import names_version
from actors.protocol.outcomes import untaken
from actors.protocol.policy import called
from actors.protocol.versions import MODERN_VERSIONS, can_use
from actors.quotas import QuotaReached, QuotaSupervisor
from actors.runtime import ActorDown, AtCapacity, MailboxFull, NotTaken, Ref, Registry, SystemClosed
from actors.runtime import Reply as PendingReply
from actors.services import Services
from actors.sessions.messages import NO_OPERATIONS, EndSession, GetEvents, PostMessages, unanswered
from actors.sessions.router import Activate, Elsewhere, OpenSession, Sessions, session_key
from actors.streams.connection import Connection
from actors.streams.follower import Follower
from actors.streams.recorder import handle

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = headers.VERSION_HEADER.lower()
EVENT_HEADER = "last-event-id"
UNANSWERED = (MailboxFull, NotTaken, ActorDown)
"""How a call to an actor ends without its reply."""
BEGUN = (Follower, MailFeed)
"""What is to be read from the log first."""
READER_BITS = 48
"""Of the number by which owners tell the connections that a client reads a stream on."""

Session: TypeAlias = Ref | RemoteSession


class Gate:
    """Implements the port `Door`. `overloaded`: whether new work waits outside."""

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        router: NamedRef,
        mailer: NamedRef,
        modern: "ModernActors",
        overloaded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._modern = modern
        self._mailer = mailer
        self._services = services
        self._overloaded = overloaded
        self._sessions = sessions
        self._router = router

    async def post(self, post: Post) -> Reply:
        """A POST: one message or a batch."""
        reply = await self._post(post)
        if isinstance(reply, Answer) and reply.reason:
            self._count(reply.reason)
        return reply

    async def _post(self, post: Post) -> Reply:
        table = self._services.table.value
        served = table.endpoints.get(post.endpoint)
        if table.policy is not None and not self.serves(post.endpoint, post.principal, post.rights):
            served = None
        if served is None:  # what is in it nobody looks at, so the error has no id; that it was not executed is known
            gone = errors.saying("no", errors.refusal("endpoint_not_found"))
            return Answer.refusing(untaken(gone, Raw(post.body)))
        metered = table.policy is not None and table.policy.metered
        if post.begun is not None and not metered:
            post.begun()
        one_server = served.kind == "transparent"
        session_id, version = post.headers.get(SESSION_HEADER), post.headers.get(VERSION_HEADER)
        mirrored = post.headers if post.mirrored else None
        modern = partial(_modern_rung, headers=mirrored, one_server=one_server)
        route = (
            classify.classify_body(
                post.body, session_id, version, limit=self._services.limits.message_bytes, modern=modern
            )
            if post.frame is None
            else classify.classify(post.frame, session_id, version, modern=modern)
        )
        match route:
            case classify.Rejection(error, id):
                return Answer.refusing(error, id)
            case classify.Initialize(request):
                if post.watch is not None:
                    request = post.watch.began(request, era="legacy")
                if self._overloaded():  # new work waits outside; work in hand goes on
                    return Answer.refusing(errors.overloaded(), request.id)
                if metered and (over := await self._over(post)) is not None:
                    return Answer.refusing(over, request.id)
                return await self._open(post, request)
            case classify.LegacyRequest(session, request):
                if post.watch is not None:
                    request = post.watch.began(request, session=handle(session_key(session)), era="legacy")
                if self._overloaded():
                    return Answer.refusing(errors.overloaded(), request.id)
                if metered and request.method != "ping" and (over := await self._over(post)) is not None:
                    return Answer.refusing(over, request.id)
                letter = _Letter((request,), version, post.rights, watch=post.watch)
                return await self._deliver(post, session, letter)
            case classify.LegacyNotification(session, message) | classify.LegacyResponse(session, message):
                return await self._deliver(post, session, _Letter((message,), version, post.rights))
            case classify.LegacyBatch(session, batch):
                good = tuple(m for m in batch.messages if not isinstance(m, Malformed))
                if post.watch is not None:
                    began = partial(post.watch.began, session=handle(session_key(session)), era="legacy")
                    good = tuple(began(m) if isinstance(m, Request) else m for m in good)
                bad = tuple((classify.echoed(m), m.error.raw) for m in batch.messages if isinstance(m, Malformed))
                letter = _Letter(good, version, post.rights, batch=True, bad=bad, watch=post.watch)
                if metered and letter.ids and (over := await self._over(post, len(letter.ids))) is not None:
                    return _refused_all(over, letter.ids)
                return await self._deliver(post, session, letter)
            case classify.ModernRequest(request, envelope):
                if post.watch is not None:
                    request = post.watch.began(request, era="modern", version=envelope.version)
                if self._overloaded():
                    return refused(errors.overloaded(), request)
                if metered and (over := await self._over(post)) is not None:
                    return refused(over, request)
                affinity = post.headers.get(AFFINITY_HEADER, "")
                kind = Kind(post.endpoint, post.principal, envelope.bits, affinity, one_server)
                return await self._modern.ask(
                    replace(kind, rights=post.rights) if table.by_rights else kind,
                    lambda reply: Begin(request, envelope, mirrored, reply, post.rights, post.watch),
                    request,
                )
            case classify.ModernNotification(notification):
                return await self._inform(post, notification, one_server=one_server)
            case _:
                assert_never(route)

    def serves(self, endpoint: str, principal: Principal, rights: Rights) -> bool:
        """Whether there is such an endpoint. One of which somebody may see nothing looks to him as if there were
        none."""
        table = self._services.table.value
        served, policy = table.endpoints.get(endpoint), table.policy
        if served is None or policy is None or not policy.enforced or not served.name:
            return served is not None
        return any(map(policy.ruleset(principal.name, rights).sees, served.backends))

    async def _over(self, post: Post, requests: int = 1) -> ProtocolError | None:
        """Why so many requests may not be made at this endpoint at present. Whoever waits for that is cancelled with
        its connection; what was taken stays taken."""
        try:
            return await self._metered(post, requests)
        finally:
            if post.begun is not None:
                post.begun()

    async def _metered(self, post: Post, requests: int) -> ProtocolError | None:
        policy = self._services.table.value.policy
        if policy is None or not policy.metered:
            return None
        path = f"/mcp/{post.endpoint}" if post.endpoint else "/mcp"
        due = policy.ruleset(post.principal.name, post.rights).due("endpoint", "", path)
        found = None
        if due:
            verdict = await self._services.limiter.asked(due, enforced=policy.enforced, cost=requests)
            found = verdict.refused
        if found is None:
            return None
        mode = "enforce" if policy.enforced else "observe"
        rule, who = f"{found.rule}: {found.item}: {found.limit}", called(post.principal.name, post.rights)
        told = {"outcome": "limited", "rule": rule}
        self._services.log.info("limit_reached", mode=mode, kind="endpoint", item=path, principal=who, **told)
        if self._services.audit.on:
            first = next(iter(post.watch.operations.values()), None) if post.watch is not None else None
            about = who_asks_often(post.principal, post.rights, first)
            self._services.audit.record_often("deny", mode=mode, item=f"endpoint:{path}", **told, **about)
        return limiting.at_endpoint(found, verdict.seconds) if policy.enforced else None

    async def _inform(self, post: Post, notification: Notification, *, one_server: bool) -> Reply:
        """A notification without a session. It passes where what it means is between the client and one server;
        elsewhere nobody could say whose it is, so that it is accepted and dropped. Nothing says what became of it."""
        if not one_server or not classify_modern.between_peers(notification.method):
            self._services.telemetry.count("stagedoor_messages_dropped_total", ("unknown_notification",))
            return Answer(202)
        if self._overloaded():
            return refused(errors.overloaded())
        # It says nothing of its client that a server could be told.
        kind = Kind(post.endpoint, post.principal, frozenset(), post.headers.get(AFFINITY_HEADER, ""), one_server)
        if self._services.table.value.by_rights:
            kind = replace(kind, rights=post.rights)
        return await self._modern.ask(kind, lambda reply: Inform(notification, reply, post.rights))

    async def get(self, get: Get) -> Reply:
        """A GET: a new event stream, or the rest of one. Where the session ended while its stream was looked for, that
        is done once more: whether it ended for good is found out by coming back."""
        reply = await self._get(get) or await self._get(get, again=True)
        reply = reply or Answer.refusing(errors.overloaded("the session is being restored"))
        if isinstance(reply, Answer) and reply.reason:
            self._count(reply.reason)
        return reply

    async def _get(self, get: Get, *, again: bool = False) -> Reply | None:
        """None: the session ended meanwhile, and its logs with it; or it may have, at the process that owns it."""
        found = await self._find_checked(get)
        if isinstance(found, Answer):
            return found
        cursor = get.headers.get(EVENT_HEADER)
        stream, epoch, seq = None, 0, 0
        if cursor is not None:
            parsed = parse_event_id(cursor)
            if parsed is None:
                return Answer.refusing(errors.bad_event_id())
            stream, epoch, seq = parsed
        reader = _Reader(randbits(READER_BITS), get.rights)
        reply = await self._events(get, found, stream, epoch, seq, reader)
        if isinstance(reply, Failed) and _goes_on_nowhere(reply) and stream is not None and stream.startswith("g"):
            # SDK clients would try the same place again, and do without a stream then; so this one gets another, which
            # says what may have changed.
            another = await self._events(get, found, None, epoch, seq, reader)
            if not (isinstance(another, Answer) and another.status == 409):
                # (Who has no place for one has enough that say it.)
                self._services.telemetry.count("stagedoor_gaps_total", ("lost",))
                reply = another
        if isinstance(reply, Failed):
            ended = not found.alive or (type(found) is RemoteSession and not again and _nothing_is_there(reply))
            return None if ended else Answer.refusing(_resume_refusal(reply))
        if isinstance(reply, Streaming) and isinstance(reply.source, FollowedStream):
            reply.source.comes_back = can_use(get.headers.get(VERSION_HEADER, ""), "priming")
        return reply

    async def _events(
        self, get: Get, session: Session, stream: str | None, epoch: int, seq: int, reader: "_Reader"
    ) -> Reply | Failed | None:
        """What a session answers to a GET; why it can't go on with the stream; or None, as `_get`."""
        try:
            outcome = await session.call(
                lambda reply: GetEvents(stream, epoch, seq, reply, reader.number, rights=reader.rights),
                self._services.limits.admission,
            )
        except errors.Refusal as refusal:
            return Answer.refusing(refusal.error)
        except (MailboxFull, NotTaken):
            return Answer.refusing(errors.overloaded())
        except ActorDown as down:
            # What an actor crashes of may be this very message: it is not given to the next life at once.
            return Answer.refusing(errors.overloaded("the session is being restored")) if down.reason.abnormal else None
        where = session_key(get.headers[SESSION_HEADER]), get.principal, get.endpoint
        if isinstance(outcome, BEGUN):
            return await self._begin(outcome, where, reader)
        return self._held(outcome, where, reader=reader)

    async def delete(self, delete: Delete) -> Answer:
        """A DELETE: the end of a session. What an actor had not taken when it ended is offered to its next life, for
        the session may go on there."""
        answer = await self._delete(delete)
        if answer.reason:
            self._count(answer.reason)
        return answer

    async def _delete(self, delete: Delete) -> Answer:
        for _ in range(LIVES):
            found = await self._find_checked(delete)
            if isinstance(found, Answer):
                return found
            try:
                answer: Answer = await found.call(EndSession, self._services.limits.admission)
            except errors.Refusal as refusal:
                return Answer.refusing(refusal.error)
            except (MailboxFull, NotTaken):
                return Answer.refusing(errors.overloaded())
            except ActorDown as down:
                if down.taken:
                    break
            else:
                return answer
        return Answer.refusing(errors.overloaded("the session is being restored"))

    def client_gone(self, affinity: str) -> None:
        """As in the port."""
        self._modern.client_gone(affinity)

    def _count(self, reason: str) -> None:
        """Counts a refusal of ours. What is refused before the door is asked is counted where that is done."""
        self._services.telemetry.count("stagedoor_messages_rejected_total", (reason,))

    # Sessions

    async def _find_checked(self, request: Get | Delete) -> Session | Answer:
        if not self.serves(request.endpoint, request.principal, request.rights):
            return Answer.refusing(errors.refusal("endpoint_not_found"))
        session_id = request.headers.get(SESSION_HEADER)
        rejection = classify.check_headers(session_id, request.headers.get(VERSION_HEADER))
        if rejection is not None:
            return Answer.refusing(rejection.error)
        found = await self.find(session_key(session_id or ""), request.principal, request.endpoint)
        return Answer.refusing(found) if isinstance(found, ProtocolError) else found

    async def find(self, key: SessionKey, principal: Principal, endpoint: str) -> Session | ProtocolError:
        """The session, here or elsewhere. A foreign one looks exactly like one that is not there."""
        sessions = self._sessions
        if key not in sessions.under_way:
            alive = sessions.table.get(key)
            if alive is not None and alive.ref.alive:
                if alive.principal != principal or alive.endpoint != endpoint:
                    return errors.session_not_found()
                return alive.ref
            if key not in sessions.elsewhere and not sessions.draining:
                found = await self._activate(key, principal, endpoint)
                if isinstance(found, Elsewhere):
                    sessions.know(key, found.owner)
                elif isinstance(found, Ref) or not sessions.draining:
                    return found
        return RemoteSession(self._mailer, key, principal, endpoint)

    async def _activate(self, key: SessionKey, principal: Principal, endpoint: str) -> Ref | Elsewhere | ProtocolError:
        try:
            found: Ref | Elsewhere | ProtocolError = await self._router.call(
                lambda reply: Activate(key, principal, endpoint, reply), self._services.limits.admission
            )
        except UNANSWERED:
            return errors.draining() if self._sessions.draining else errors.overloaded()
        return found

    async def _open(self, post: Post, request: Request) -> Reply:
        try:
            opened = await self._router.call(
                lambda reply: OpenSession(post.principal, post.endpoint, reply), self._services.limits.admission
            )
        except UNANSWERED:
            return Answer.refusing(errors.draining() if self._sessions.draining else errors.overloaded(), request.id)
        if isinstance(opened, ProtocolError):
            return Answer.refusing(opened, request.id)
        ref, session_id = opened
        letter = _Letter((request,), rights=post.rights, watch=post.watch)
        if post.watch is not None:
            post.watch.belongs(handle(session_key(session_id)))
        try:
            reply: Reply = await ref.call(letter.posted, self._services.limits.admission)
        except UNANSWERED as error:
            return self._unanswered(error, letter) or Answer.refusing(errors.overloaded(), request.id)
        where = session_key(session_id), post.principal, post.endpoint
        return _with_session(self._held(reply, where, letter.ids, _Reader(0, letter.rights)), session_id)

    async def _deliver(self, post: Post, session_id: str, letter: "_Letter") -> Reply:
        """The outcome. What an actor had not taken when it ended is offered to its next life."""
        where = session_key(session_id), post.principal, post.endpoint
        for _ in range(LIVES):
            found = await self.find(*where)
            if isinstance(found, ProtocolError):
                return Answer.refusing(found, letter.id)
            try:
                outcome = await found.call(letter.posted, self._services.limits.admission)
                if letter.watch is not None and type(found) is RemoteSession:
                    letter.watch.elsewhere()
            except errors.Refusal as refused:
                return Answer.refusing(refused.error, letter.id)
            except UNANSWERED as error:
                refusal = self._unanswered(error, letter)
                if refusal is not None:
                    return refusal
            else:
                if type(outcome) is Answer:
                    return outcome
                if isinstance(outcome, Follower):
                    # What another process had recorded of it, which may run: no refusal could be true any more.
                    outcome = OutboxFeed(outcome, (0, 0))
                return self._held(outcome, where, letter.ids, _Reader(0, letter.rights))
        return Answer.refusing(errors.overloaded("the session is being restored"), letter.id)

    def _unanswered(self, error: Exception, letter: "_Letter") -> Answer | None:
        """The answer to what the session has not answered; None: it may be given to the next life."""
        if not isinstance(error, ActorDown):
            self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("session",))
            return Answer.refusing(errors.overloaded(), letter.id)
        # It may have been given to a backend: said so, never tried again.
        return self._lost(letter) if error.taken else None

    @staticmethod
    def _lost(letter: "_Letter") -> Answer:
        return unanswered(letter.messages, batch=letter.batch)

    # Streams, which stay with their connections when the session moves

    def _held(self, reply: Any, where: Where, ids: Sequence[RequestId] = (), reader: "_Reader | None" = None) -> Reply:
        """What a session has answered. `ids`: of the requests whose outcome a stream is to bring. `reader`: who has
        asked for the stream; none: it is that of a POST."""
        if type(reply) is Answer:
            return reply
        if isinstance(reply, Feed):
            return Streaming(
                FollowedStream.of(reply, self._services, where[0], self._search(where, reader), Unanswered(ids))
            )
        assert isinstance(reply, Streaming)
        return Streaming(self._hold(reply.source, where, ids, reader), reply.headers)

    def _hold(self, source: Any, where: Where, ids: Sequence[RequestId], reader: "_Reader | None") -> HeldStream:
        def follow(source: Connection | Follower, unanswered: Unanswered) -> FollowedStream:
            return FollowedStream.after(source, self._services, where[0], self._search(where, reader), unanswered)

        return HeldStream(source, follow, ids)

    def _search(self, where: Where, reader: "_Reader | None") -> Search:
        number, rights = reader or _Reader()

        async def search(stream: str, epoch: int, seq: int) -> Feed | bool:
            """Where the stream goes on after this event; else whether it may be found later."""
            found = await self.find(*where)
            if isinstance(found, ProtocolError):
                return found.kind != "session_not_found"
            try:
                outcome = await found.call(
                    lambda reply: GetEvents(stream, epoch, seq, reply, number, again=True, rights=rights),
                    self._services.limits.admission,
                )
            except errors.Refusal as refusal:
                return refusal.error.kind != "session_not_found"
            except UNANSWERED:
                return True
            if isinstance(outcome, Follower):
                return OutboxFeed(outcome, (epoch, seq))
            return outcome if isinstance(outcome, MailFeed) else outcome.passing

        return search

    async def _begin(self, source: Follower | MailFeed, where: Where, reader: "_Reader") -> Reply | Failed:
        """The rest of a stream, or why it can't be had."""
        follower = (
            source
            if isinstance(source, Follower)
            else FollowedStream.of(source, self._services, where[0], self._search(where, reader), Unanswered())
        )
        begun = False
        try:
            failed = await follower.begin()
            begun = failed is None
        finally:
            if not begun:
                follower.close()
        if failed is None:
            self._services.telemetry.count("stagedoor_resumes_total", ("hit",))
            self._services.telemetry.count("stagedoor_events_replayed_total", (), follower.replayed)
            if follower.gap is not None:
                self._services.telemetry.count("stagedoor_gaps_total", ("trimmed",))
            brings = self._hold(follower, where, (), reader) if isinstance(follower, Follower) else follower
            return Streaming(brings, marks=source.marks)
        self._services.telemetry.count("stagedoor_resumes_total", ("missed",))
        return failed


class _Reader(NamedTuple):
    """A connection of a client that has asked for a stream: `number` as `reader` of `GetEvents`, and with what rights
    it did."""

    number: int = 0
    rights: Rights = NO_RIGHTS


class _Letter(Struct, frozen=True):
    """What a POST brings to its session. `bad`: members of a batch that could not be read, each with its id, if that
    could be, and the error."""

    messages: tuple[Message, ...]
    version: str | None = None
    rights: Rights = NO_RIGHTS
    batch: bool = False
    bad: tuple[tuple[RequestId | None, Raw], ...] = ()
    watch: PostObserver | None = None

    @property
    def ids(self) -> tuple[RequestId, ...]:
        """The ids of its requests."""
        return tuple(m.id for m in self.messages if type(m) is Request)

    @property
    def id(self) -> RequestId | None:
        """Of the request that an error answers: the first one."""
        return next(iter(self.ids), None)

    def posted(self, reply: PendingReply) -> PostMessages:
        """The message that the session is told."""
        operations = self.watch.operations if self.watch is not None else NO_OPERATIONS
        return PostMessages(self.messages, self.batch, self.version, self.bad, reply, self.rights, operations)


def _modern_rung(
    frame: Frame, version: str, headers: Mapping[str, str] | None, *, one_server: bool
) -> classify.Route | classify.Rejection:
    """A header that nobody knows, over a body that names no revision, is more likely a client's of a session."""
    body = frame.params if isinstance(frame, Request | Notification) else EMPTY
    if version not in MODERN_VERSIONS and names_version(body) is None:
        return classify.refuse_modern(frame, version)
    return classify_modern.modern(frame, headers, extra_methods=modern_tasks.METHODS, one_server=one_server)


def _refused_all(error: ProtocolError, ids: Sequence[RequestId]) -> Answer:
    """The same error for each request of a batch."""
    body = codec.encode_batch([codec.encode_error(id, error) for id in ids])
    return Answer(error.status, body, error.headers)


def _with_session(reply: Reply, session_id: str) -> Reply:
    """The id goes on the response that carries the InitializeResult, and on no other."""
    header = (SESSION_HEADER, session_id)
    if isinstance(reply, Streaming):
        return Streaming(reply.source, (*reply.headers, header))
    if reply.status != 200 or b'"result"' not in reply.body:
        return reply  # initialize failed: there is no session
    return Answer(reply.status, reply.body, (*reply.headers, header))


def _nothing_is_there(failed: Failed) -> bool:
    """No such stream, or no such session."""
    return failed.reason is Refused.GONE and failed.head == 0


def _goes_on_nowhere(failed: Failed) -> bool:
    """There is the stream, and no way on from that place."""
    return failed.reason in (Refused.GONE, Refused.SEQ) and failed.head > 0


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


# Clients without sessions -------------------------------------------------------------------------------------

AFFINITY_HEADER = "stagedoor-affinity"
"""By this a client may say which of its requests belong together: those with one value reach the same connections of
backends that have sessions. Without it all requests of a principal belong together. The value means nothing else, and
gives access to nothing: what it leads to is the principal's own."""


SAID_FOR = 60.0
SAID = 10_000
"""Seconds for which other replicas are not told again who has come with which rights, and of how many that is known."""


class ModernActors:
    """The actors that serve modern requests; `make` makes one."""

    def __init__(
        self,
        services: Services,
        registry: Registry,
        supervisor: QuotaSupervisor,
        make: Callable[[Kind], ModernRequests],
        others: Sequence[QuotaSupervisor] = (),
    ) -> None:
        """`others`: of whatever else is kept for modern clients."""
        self._services = services
        self._registry = registry
        self._supervisor = supervisor
        self._make = make
        self._others = others
        self._said: dict[tuple[str, str], tuple[float, float]] = {}
        """Who has come with which rights, as other replicas were told, when, and how long that token is good."""
        self._newest: dict[tuple[str, str], Rights] = {}
        """With what rights principals have come last by each OAuth client: those of the token that is good longest."""

    def client_gone(self, affinity: str) -> None:
        """As in `Door`."""
        for shares in (self._supervisor, *self._others):
            shares.client_gone(affinity)

    async def ask(
        self, kind: Kind, make: Callable[[PendingReply], Begin | Inform], request: Request | None = None
    ) -> Reply:
        """Gives this request, or a notification, to the actor for its kind, and waits for the outcome."""
        for _ in range(LIVES):
            found = self._find(kind)
            if isinstance(found, ProtocolError):
                return refused(found, request)
            try:
                reply: Reply = await found.call(make, self._services.limits.admission)
                return reply
            except (MailboxFull, NotTaken):
                self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("exchanges",))
                return refused(errors.overloaded(), request)
            except ActorDown as down:
                if down.taken:
                    # It may have been given to a backend: said so, never tried again.
                    what = "request" if request is not None else "notification"
                    lost = errors.internal(f"the {what} was lost", reason="crashed", executed="unknown")
                    return refused(lost, request)
        return refused(errors.overloaded(), request)

    def _find(self, kind: Kind) -> Ref | ProtocolError:
        """The actor for such requests, which is started if there is none."""
        name = kind.name
        running = self._registry.whereis(name)
        if running is not None and running.alive:
            if kind.rights is not NO_RIGHTS and self._newest.get((kind.principal.name, kind.rights.client)) is not (
                kind.rights
            ):
                self._returned(kind)
            return running
        known = self._supervisor.of(kind.principal) if kind.rights is not NO_RIGHTS else []
        try:
            started = self._supervisor.start_for(kind.principal, self._make(kind), name, kind.affinity)
        except QuotaReached:
            return errors.too_many_requests("kinds of clients of this principal")
        except AtCapacity:
            return errors.overloaded()
        except SystemClosed:
            return errors.draining()
        if kind.rights is not NO_RIGHTS:  # what he may see may have changed with his rights
            for other in known:
                other.reply(Granted(kind.whoever, kind.rights))
            self._tell_others(kind)
            self._remember(kind)
        return started

    def _remember(self, kind: Kind) -> Rights | None:
        """That this token is the newest, if it is; the one that was so before, if there was one. Of two that end
        together the first stays it: else those who bring them would end in turns what the other one listens to."""
        who = kind.principal.name, kind.rights.client
        before = self._newest.get(who)
        if before is not None:
            left = end_of(kind.rights), end_of(before)
            if left[0] < left[1] or (left[0] == left[1] and kind.rights.digest != before.digest):
                return None
        if len(self._newest) >= SAID:
            self._newest.clear()
        self._newest[who] = kind.rights
        return before

    def _returned(self, kind: Kind) -> None:
        """Somebody who has come before comes with another token: if it is the newer one, and gives the rights of an
        earlier one, what listens with those between ends as it did when these came."""
        before = self._remember(kind)
        if before is None or before.digest == kind.rights.digest:
            return
        for other in self._supervisor.of(kind.principal):
            other.reply(Granted(None, kind.rights))
        self._tell_others(kind)

    def _tell_others(self, kind: Kind) -> None:
        """Whoever listens at another replica hears of it too. (Where no letter arrives, what he has there ends with his
        older token.) However many kinds of clients come with these rights, it is said once in a while."""
        cluster, now, what = self._services.cluster, self._services.wall(), (kind.principal.name, kind.rights.digest)
        said, until = self._said.get(what, (-SAID_FOR, 0.0))
        if now - said < SAID_FOR and end_of(kind.rights) <= until:
            return
        if len(self._said) >= SAID:
            self._said.clear()
        self._said[what] = now, end_of(kind.rights)
        letter = lt.encode(lt.Letter("", (cluster.incarnation, 0), lt.Came(), kind.principal, "", rights=kind.rights))

        def read(found: list[Replica] | Failed) -> None:
            for replica in found if not isinstance(found, Failed) else ():
                if replica.alive and replica.incarnation != cluster.incarnation:
                    self._services.telemetry.count("stagedoor_letters_sent_total", (lt.KINDS[lt.Came],))
                    cluster.post(replica.incarnation, letter, ignore)

        cluster.replicas(read)

    def came(self, letter: lt.Letter) -> None:
        """Somebody has come to another replica."""
        for ref in self._supervisor.of(letter.principal):
            ref.reply(Granted(None, letter.rights))
