"""The owner's side: one life of a session. It runs the real session machine, and lets out what the store has
acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import losses, machine, rebuild
from actors.machines.session.record import read_request, request_id
from actors.machines.session.state import Rules, Session
from actors.ports import Deltas, Failed, Grant, Record, Refused, StreamHead
from actors.protocol import codec, errors
from actors.protocol.messages import Notification, Request
from actors.record import apply
from tests.model.people import uid_of
from tests.model.store import Bug
from tests.model.world import Breach

if TYPE_CHECKING:
    from tests.model.replica import Replica

ASK_WAITS = 8.0
TURN = 0.25


@dataclass(frozen=True)
class Target:
    """To whom the outcome of a letter goes: a process, and its number for it."""

    inc: str
    mid: int

    @property
    def holder(self) -> str:
        return self.inc.partition(".")[0]


@dataclass
class Out:
    """What was appended to one stream and is not acknowledged."""

    acked: int = 0
    opener: int = 0
    waiting: list[fx.Append] = field(default_factory=list)
    mending: bool = False


class Life:
    def __init__(self, replica: Replica, key: str, grant: Grant, record: Record) -> None:
        self.replica, self.key, self.grant = replica, key, grant
        self.over: str | None = None
        self.verifying = False
        self.parked: list[tuple[Target, Any]] = []
        self.targets: dict[int, Target] = {}
        self.readers: dict[str, int] = {}
        self.opening: dict[int, str | None] = {}
        """POSTs and GETs whose stream is not acknowledged yet, with the call of each."""
        self.outs = {name: Out(head.seq, head.opener) for name, head in record.streams.items()}
        self.found = {request_id(k): read_request(v).stream for k, v in record.requests.items()}
        self.rev = record.rev
        self.kept = record
        self._held_back: list[tuple[str, tuple[Any, ...], Any]] = []
        self._numbers = 0
        replica.world.note(replica.inc, "begins", key, "at epoch", grant.epoch)
        self.session, effects = rebuild.rebuild(record, Session(grant.epoch, Rules()), replica.world.now, ("L",))
        self._run(effects)
        self._save({})

    def __repr__(self) -> str:
        return f"<{self.key} of {self.grant.owner} at {self.grant.epoch}{' ' + self.over if self.over else ''}>"

    # What comes in

    def take(self, target: Target, body: Any) -> None:
        """A letter, from here or elsewhere."""
        if self.over:
            self.replica.arrived(target, self.key, body)
        elif self.verifying or self.replica.doubtful:
            self.parked.append((target, body))
        else:
            self._act(target, body)

    def unpark(self) -> None:
        parked, self.parked = self.parked, []
        for target, body in parked:
            self.take(target, body)

    def _act(self, target: Target, body: Any) -> None:
        if body[0] == "deliver" and self._doubled(target):
            return
        self._witness(target, body)
        self._numbers += 1
        number = self._numbers
        match body:
            case ("deliver", message) | ("note", message, _):
                self.targets[number] = target
                self.tell(ev.Posted(number, (message,), False, self.replica.world.now))
            case ("attach", stream, epoch, seq):
                self.targets[number] = target
                self.tell(ev.Attached(number, stream, epoch, seq))
            case ("recover", uid):
                self._rename(target)
                stream = self.found.get(uid) or self._stream_of(uid)
                if target in self.targets.values():
                    self._say_again(target)
                elif stream is None:
                    self.reply(target, ("unrecorded",))
                else:
                    self.targets[number] = target
                    self.tell(ev.Attached(number, stream, self.outs[stream].opener, 0))
            case ("ask_head", stream):
                out = self.outs.get(stream, Out())
                finished = stream not in self.session.streams and not out.waiting
                self.reply(target, ("head", 0, out.acked, finished))
            case ("detach",):
                self.detach(target)

    def _doubled(self, target: Target) -> bool:
        """Whether these requests were taken by this process before, maybe from another name of their holder."""
        self._rename(target)
        taken, letter = self.replica.taken, (target.holder, target.mid)
        return letter in taken or bool(taken.add(letter))

    def _rename(self, target: Target) -> None:
        for known, other in self.targets.items():
            if (other.holder, other.mid) == (target.holder, target.mid):
                self.targets[known] = target  # its holder has another name by now

    def _say_again(self, target: Target) -> None:
        """Of a letter that is under way here, or has its stream: what was said of it may have been lost."""
        number = next(number for number, other in self.targets.items() if other == target)
        stream = next((name for name, reader in self.readers.items() if reader == number), None)
        if stream is not None and number not in self.opening:
            self.reply(target, ("attached", stream, self.outs[stream].opener, 0, self.outs[stream].acked, True))

    def _stream_of(self, uid: str) -> str | None:
        entry = self.session.requests.get(uid)
        stream = self.session.posts[entry.post].stream if entry is not None else None
        return stream if stream in self.outs else None

    def _witness(self, target: Target, body: Any) -> None:
        """What is done for the world is done by the owner; a cancel comes after its request."""
        store = self.replica.world.store
        session = store.data.sessions.get(self.key)
        mine = session is not None and (session.owner, session.epoch) == (self.grant.owner, self.grant.epoch)
        if body[0] in ("deliver", "note") and not mine and not store.lossy:
            raise Breach("law 4", f"{self} takes {body}, and is not the owner")
        if body[0] == "deliver" and isinstance(body[1], Request):
            self.replica.world.note(self, "takes", body[1].id)
            if (body[1].id, target.holder) in self.replica.cancels.taken:
                self.replica.cancels.early.add(body[1].id)
        if body[0] == "note":
            self.replica.servers.noted.add(body[2])
        if body[0] == "note" and isinstance(body[1], Notification) and (uid := uid_of(body[1])):
            self.replica.cancels.taken.add((uid, target.holder))
            self.replica.cancels.early.discard(uid)

    def detach(self, target: Target) -> None:
        for number, other in list(self.targets.items()):
            if other == target:
                self._drop(number)

    def _drop(self, number: int) -> None:
        del self.targets[number]
        streams = [name for name, reader in self.readers.items() if reader == number]
        for name in streams:
            del self.readers[name]
            self.tell(ev.Detached(number, name))
        if not streams:
            self.tell(ev.PostBroken(number))

    def lose_holder(self, inc: str) -> None:
        for target in {t for t in self.targets.values() if t.inc == inc}:
            self.detach(target)

    # The machine

    def tell(self, event: ev.SessionEvent) -> None:
        if self.over is None:
            self.session, effects = machine.step(self.session, event)
            self._run(effects)

    def _run(self, effects: fx.Effects) -> None:
        for effect in effects:
            self._effect(effect)

    def _effect(self, effect: fx.SessionEffect) -> None:
        replica, servers = self.replica, self.replica.servers
        match effect:
            case fx.Accept(post):
                self.reply(self.targets.pop(post, None), ("taken",))
            case fx.AnswerPost(post, body):
                self.reply(self.targets.pop(post, None), ("answer", body))
            case fx.RefusePost(post, error, _):
                self.reply(self.targets.pop(post, None), ("refused", error.status))
            case fx.OpenStream():
                self._open(effect)
            case fx.Append():
                self._append(effect)
            case fx.Follow(connection, stream, epoch, seq, head, live):
                if live:
                    self.readers[stream] = connection
                self.reply(self.targets.get(connection), ("attached", stream, epoch, seq, head, live))
                if not live:
                    self.targets.pop(connection, None)
            case fx.RefuseGet(connection, error):
                self.reply(self.targets.pop(connection, None), ("refused", error.status))
            case fx.CloseConnection(connection, reason):
                if reason == "superseded":
                    self.readers = {n: c for n, c in self.readers.items() if c != connection}
                    self.reply(self.targets.pop(connection, None), ("superseded",))
            case fx.Dispatch(call):
                uid = str(self.session.calls[call])
                replica.later(replica.world.spell(0, 0.02), lambda: servers.execute(self, call, self.key, uid))
            case fx.Continue(call, _, _, _, place):
                replica.later(0.02, lambda: servers.resume(self, call, str(place.id), place.cursor or "0"))
            case fx.CancelCall(call):
                uid = str(self.session.calls.get(call, ""))
                if uid in servers.executions:
                    servers.cancel(uid)
            case fx.AnswerBackend(_, id, ok, _):
                uid = str(id).removeprefix("ask of ")
                replica.later(0.005, lambda: servers.answer(uid, ok))
            case fx.StartTurnClock(post):
                replica.later(TURN, lambda: self.tell(ev.StreamTurnDue(post)))
            case fx.StartServerRequestClock(ask, _):
                replica.later(ASK_WAITS, lambda: self.tell(ev.ServerRequestExpired(ask)))
            case fx.Save(fields):
                self._save(fields)
            case fx.End():
                if self.over is None:
                    self._say("end", done=lambda _: self._leave())
                    self.over = "ended"
            case fx.Release() | fx.Broadcast() | fx.NotifyBackend() | fx.UseLevel() | fx.Count():
                pass
            case fx.StopTurnClock() | fx.StartDeadline() | fx.StopDeadline() | fx.StopServerRequestClock():
                pass

    # The store

    def _say(self, name: str, *args: Any, done: Any = None) -> None:
        """Nothing is written under a grant that is just being renewed."""
        if self.verifying:
            self._held_back.append((name, args, done))
        else:
            self.replica.main.say(name, self.key, self.grant, *args, done=done)

    def _save(self, fields: dict[str, bytes | None]) -> None:
        self.rev += 1
        self._keep(Deltas(fields=fields))
        self._say("save", self.rev, Deltas(fields=fields), done=self._saved)

    def _saved(self, outcome: Any) -> None:
        if isinstance(outcome, Failed) and self.over is None:
            self._restore()

    def _keep(self, deltas: Deltas, requests: dict[str, bytes] | None = None) -> None:
        """What the record says, but for what is on its way into a log: that goes there again."""
        tables = []
        for mine, changes in (
            (self.kept.fields, deltas.fields),
            ({**self.kept.requests, **(requests or {})}, deltas.requests),
            (self.kept.asked, deltas.asked),
        ):
            merged = {**mine, **changes}
            tables.append({name: value for name, value in merged.items() if value is not None})
        self.kept = Record(None, 0, 0, 0, tables[0], tables[1], tables[2])

    def _open(self, effect: fx.OpenStream) -> None:
        number = effect.post if effect.post is not None else effect.connection
        assert number is not None
        out = self.outs[effect.stream] = Out(opener=self.grant.epoch)
        if effect.first is not None:
            out.waiting.append(fx.Append(effect.stream, 1, effect.first))
        self.readers[effect.stream] = number
        self.opening[number] = next((request_id(k) for k in effect.requests), None)  # type: ignore[assignment]
        self._keep(Deltas(), effect.requests)
        self._say(
            "open", effect.stream, effect.requests, effect.first,
            done=lambda outcome: self._opened(effect, out, number, outcome),
        )  # fmt: skip
        if self.replica.bug is Bug.NOT_RECORDED:
            self.reply(self.targets.get(number), ("opened", effect.stream, out.opener))

    def _opened(self, effect: fx.OpenStream, out: Out, number: int, outcome: Any) -> None:
        if self.over not in (None, "released") or number not in self.opening:
            return
        if isinstance(outcome, Failed):
            self._restore()
            return
        del self.opening[number]
        if self.replica.bug is not Bug.NOT_RECORDED:
            self.reply(self.targets.get(number), ("opened", effect.stream, out.opener))
        if effect.first is not None:
            del out.waiting[0]
            out.acked = max(out.acked, 1)
            self._frames(effect.stream, 1, effect.first, finished=False)

    def _append(self, effect: fx.Append) -> None:
        out = self.outs[effect.stream]
        out.waiting.append(effect)
        if not out.mending:
            self._send(effect, out)
        if self.replica.bug is Bug.TWO_HOMES and effect.data and effect.requests:
            self.reply(self.targets.get(self.readers.get(effect.stream, 0)), ("answer", effect.data))
        if self.replica.bug is Bug.NOT_RECORDED and effect.data:
            self._frames(effect.stream, effect.seq, effect.data, finished=effect.finish)

    def _send(self, effect: fx.Append, out: Out) -> None:
        data = [effect.data] if effect.data is not None else []
        deltas = Deltas(requests=effect.requests, asked=effect.asked)
        self._say(
            "append", effect.stream, effect.seq, data, effect.finish, deltas,
            done=lambda outcome: self._appended(effect, out, outcome),
        )  # fmt: skip

    def _appended(self, effect: fx.Append, out: Out, outcome: Any) -> None:
        if self.over not in (None, "released") or effect not in out.waiting or out.mending:
            return
        if isinstance(outcome, Failed):
            self._restore()
            return
        out.waiting.remove(effect)
        self._keep(Deltas(requests=effect.requests, asked=effect.asked))
        if effect.accepts is not None:
            self.reply(self.targets.pop(effect.accepts, None), ("taken",))
        if effect.data is not None:
            out.acked = max(out.acked, effect.seq)
        if effect.data is not None or effect.finish:
            self._frames(effect.stream, effect.seq, effect.data, finished=effect.finish)

    def _frames(self, stream: str, seq: int, data: bytes | None, *, finished: bool) -> None:
        target = self.targets.get(self.readers.get(stream, 0))
        if data is None:
            self.reply(target, ("head", 0, seq - 1, True))
        else:
            self.reply(target, ("frames", self.grant.epoch, seq, data, finished))

    # After a refusal

    def _restore(self) -> None:
        """The store has lost something, or the session is another's: `restore` tells which."""
        if self.over is not None:
            return
        for name in self._unfinished():
            self.outs[name].mending = True
        self._say("restore", *self._content(), done=self._restored)

    def _unfinished(self) -> list[str]:
        return [name for name, out in self.outs.items() if name in self.session.streams or out.waiting]

    def _content(self) -> tuple[int, Record]:
        heads = {n: StreamHead(self.outs[n].acked, opener=self.outs[n].opener) for n in self._unfinished()}
        self.rev += 1
        return self.rev, Record(None, 0, 0, 0, self.kept.fields, self.kept.requests, self.kept.asked, heads)

    def _restored(self, outcome: Any) -> None:
        if self.over is not None:
            return
        if isinstance(outcome, Failed):
            self.end("fenced")
            return
        for name, out in self.outs.items():
            if out.mending:
                out.mending = False
                self._say("mend", name, out.acked, out.opener)
                for effect in out.waiting:
                    self._send(effect, out)
        for number in list(self.opening):  # what was being opened is recorded by now, but for its first event
            del self.opening[number]
            stream = next((n for n, reader in self.readers.items() if reader == number), None)
            if stream is not None:
                self.reply(self.targets.get(number), ("opened", stream, self.outs[stream].opener))
        self._compare()

    # The lease

    def verify(self) -> None:
        """The lease had lapsed: is it still ours?"""
        if self.over is not None:
            return
        self.verifying = True
        former, nonce = self.grant, self.replica.nonce()
        self.replica.main.say(
            "claim", self.key, former.owner, former.epoch, self.replica.inc, nonce, done=self._verified
        )

    def _verified(self, outcome: Any) -> None:
        if self.over is not None:
            return
        if isinstance(outcome, Failed):
            self.replica.main.say("read", self.key, done=self._reread)
            return
        self.grant = outcome[0]
        if self.grant.owner != self.replica.inc:
            self.verify()
            return
        self.session = type(self.session)(
            **{f: getattr(self.session, f) for f in self.session.__struct_fields__} | {"epoch": self.grant.epoch}
        )
        self.verifying = False
        held_back, self._held_back = self._held_back, []
        for name, args, done in held_back:
            self._say(name, *args, done=done)
        self._reconcile(outcome[1])
        self.unpark()

    def _reread(self, found: Record | Failed) -> None:
        """It is another's, unless the store has lost the claim, or all of it."""
        if self.over is not None:
            return
        ours = not isinstance(found, Failed) and found.epoch < self.grant.epoch
        if ours or (isinstance(found, Failed) and found.reason is Refused.GONE):
            self.replica.main.say("restore", self.key, self.grant, *self._content(), done=self._rewritten)
        else:
            self._held_back = []
            self.end("fenced")

    def _rewritten(self, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            self._held_back = []
            self.end("fenced")
        else:
            self.verify()

    def _compare(self) -> None:
        """What the store has lost besides is put right."""
        self.replica.main.say("read", self.key, done=self._compared)

    def _compared(self, found: Record | Failed) -> None:
        mine = isinstance(found, Record) and (found.owner, found.epoch) == (self.grant.owner, self.grant.epoch)
        if self.over is not None or self.verifying or isinstance(found, Failed) or not mine:
            return
        if losses.cut_off(self.session, found, self._on_their_way()):
            self.verify()
        else:
            self._reconcile(found)

    def _reconcile(self, found: Record) -> None:
        behind = [
            name for name in self.session.streams
            if (name not in found.streams or found.streams[name].seq < self.outs[name].acked)
            and not self.outs[name].mending and self.readers.get(name) not in self.opening
        ]  # fmt: skip
        if behind:
            self._restore()
            return
        requests, asked = dict(self.kept.requests), dict(self.kept.asked)
        for effect in (effect for out in self.outs.values() for effect in out.waiting):
            apply(requests, effect.requests)
            apply(asked, effect.asked)
        for name in losses.cut_off(self.session, found, self._on_their_way()):
            self.outs[name] = Out(found.streams[name].seq, found.streams[name].opener)
        self.session, effects = losses.reconcile(self.session, found, requests, asked, self._on_their_way())
        self._run(effects)

    def _on_their_way(self) -> list[str]:
        return [name for name, out in self.outs.items() if out.waiting]

    # The end

    def end(self, why: str) -> None:
        """It is another's. What is unrecorded gets its error; whoever follows a stream is told to look elsewhere."""
        self.replica.world.note(self, "ends:", why)
        _, effects = machine.step(self.session, ev.Ended(why))
        self.over = why
        for effect in effects:
            if isinstance(effect, fx.AnswerPost):
                self.reply(self.targets.pop(effect.post, None), ("answer", effect.body))
        self._leave()

    def release(self) -> None:
        """Handed over, with what is in flight."""
        self.tell(ev.DrainStarted())
        self.tell(ev.DrainOverdue(frozenset({"L"})))
        if self.over is None and not self.verifying:
            self.replica.world.note(self, "is released")
            work = bool(self.kept.requests or self.kept.asked)
            self._say("release", work, done=lambda _: self._leave())
            if work:
                self.replica.look_after_released(self.key)
            self.over = "released"

    def _leave(self) -> None:
        for number, uid in self.opening.items():
            outcome = ("refused", 503) if uid is None else ("answer", lost(uid))
            self.reply(self.targets.pop(number, None), outcome)
        for number in self.readers.values():
            self.reply(self.targets.get(number), ("released",))
        for effect in (effect for out in self.outs.values() for effect in out.waiting if effect.accepts is not None):
            self.reply(self.targets.pop(effect.accepts or 0, None), ("moved", None))
        parked, self.parked, self.readers = self.parked, [], {}
        self.replica.servers.lose(self)
        self.replica.forget(self)
        for target, body in parked:
            self.replica.arrived(target, self.key, body)

    def reply(self, target: Target | None, body: Any) -> None:
        if target is not None:
            self.replica.reply(target, self.key, body)


def lost(uid: str) -> bytes:
    return codec.encode_error(uid, errors.internal("the owner was lost", reason="owner_lost", executed="unknown"))
