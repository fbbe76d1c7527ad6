"""The transport under a link: made, run, and replaced when it is lost. What an earlier one still says is not heard."""

from typing import NamedTuple

from actors import ports
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.table import BackendSpec, Target
from actors.runtime import Context


class FromTransport(NamedTuple):
    """What a transport said, and which one it was."""

    generation: int
    event: ports.TransportEvent


class Carrier:
    """The transports of one link, of which the last is the present one. Nothing here waits."""

    def __init__(self, connector: ports.Connector, target: Target, kept: ports.Kept | None = None) -> None:
        """`kept` is a session with `target`, which the first transport goes on with."""
        self.kind = ""
        """Of the present transport, or the last one: the metrics label."""
        self.tasks = 0
        """Transports that have not come to their end, which may take a while after they were closed."""
        self._connector = connector
        self._target = target
        self._kept = kept
        self._transport: ports.Transport | None = None
        self._generation = 0

    @property
    def up(self) -> bool:
        """Whether there is a transport."""
        return self._transport is not None

    @property
    def holds_process(self) -> bool:
        """Whether a child process is there, or still ending."""
        return self.kind == "stdio" and self.tasks > 0

    @property
    def relates(self) -> bool:
        """Whether what the backend says can be told to belong to a request, or to none."""
        return self.kind != "stdio"

    @property
    def warm(self) -> bool:
        """Whether the process behind it was started for an earlier connection."""
        return self._transport is not None and self._transport.warm

    @property
    def kept(self) -> ports.Kept | None:
        """What it takes to go on with the present session elsewhere."""
        return self._transport.kept if self._transport is not None else None

    @property
    def diagnostics(self) -> Diagnostics:
        """What the present transport knows of a server that does not answer."""
        stderr = self._transport.stderr if self._transport is not None else ()
        return Diagnostics(stderr=stderr) if stderr else NO_DIAGNOSTICS

    def connect(self, ctx: Context, spec: BackendSpec, modern: bool = False) -> bool:
        """Makes a transport and runs it in a task of the actor, which gets FromTransport and TaskEnded. Whether it goes
        on with the session that was kept."""
        self._generation += 1
        generation, ref = self._generation, ctx.ref

        def emit(event: ports.TransportEvent) -> None:
            ref.reply(FromTransport(generation, event))

        self._transport = self._connector.connect(spec, emit, modern)
        self.kind = self._transport.kind
        resumes = self._kept is not None and spec.target == self._target
        if self._kept is not None and resumes:
            self._transport.resume(self._kept)
        self._kept = None
        ctx.start_task(f"transport-{generation}", self._transport.run)
        self.tasks += 1
        return resumes

    def hears(self, said: FromTransport) -> bool:
        """Whether the present transport said it."""
        if said.generation != self._generation:
            return False
        if isinstance(said.event, ports.TransportClosed):
            self._transport = None
        return True

    def task_ended(self, name: str) -> bool:
        """A transport's task is over; True if it was the present one's, and had not said that it would end."""
        self.tasks -= 1
        if name != f"transport-{self._generation}" or self._transport is None:
            return False
        self._transport = None
        return True

    # The effects of the machine that go to the transport; without one they have no object

    def send(self, effect: ev.Send) -> None:
        """Puts a frame on it."""
        if self._transport is not None:
            self._transport.send(effect.frame, id=effect.id, tag=effect.tag, headers=effect.headers)

    def use_version(self, effect: ev.UseVersion) -> None:
        """The handshake settled on a revision."""
        if self._transport is not None:
            self._transport.negotiated(effect.version)

    def listen(self, effect: ev.Listen) -> None:
        """Opens the stream for messages that belong to no request."""
        if self._transport is not None:
            self._transport.listen()

    def forget(self, effect: ev.Forget) -> None:
        """Nobody waits for this request any more."""
        if self._transport is not None:
            self._transport.forget(effect.id)

    def reset(self, effect: ev.Reset) -> None:
        """Drops the backend's session."""
        if self._transport is not None:
            self._transport.restart()

    def pick_up(self, effect: ev.PickUp) -> None:
        """Fetches the rest of an answer."""
        if self._transport is not None and effect.place.cursor is not None:
            self._transport.pick_up(effect.place.id, effect.place.cursor)

    def hang(self, effect: ev.Hang) -> None:
        """Closes it gracefully; its task goes on until that is done, unheard."""
        if self._transport is not None:
            self._transport.close()
            self._leave()

    def let_go(self, effect: ev.LetGo) -> None:
        """The same, but for the backend's session."""
        if self._transport is not None:
            self._transport.let_go()
            self._leave()

    def hand_over(self, effect: ev.HandOver) -> None:
        """The same, but for its process, which the next connection may take."""
        if self._transport is not None:
            self._transport.hand_over()
            self._leave()

    def _leave(self) -> None:
        self._transport = None
        self._generation += 1
