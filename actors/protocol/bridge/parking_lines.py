"""Which connection a call goes on. The first line is where the backend's hidden state is, and takes what it can.

Where calls take turns, one that is parked keeps its turn for as long as a human thinks. So when the turns of all lines
are with parked calls, another line is opened for the next call, up to the bound; beyond it calls wait, not for ever.
"""

from msgspec.structs import replace

from actors.protocol import errors
from actors.protocol.bridge import parking_events as ev
from actors.protocol.bridge.parking_state import Calls, Phase, Step, moved, put


def first(calls: Calls) -> tuple[Calls, int]:
    """The line for what needs no turn."""
    for line in calls.lines:
        return calls, line
    return _another(calls)


def enqueue(calls: Calls, call: int) -> Step:
    """A new call goes out, or waits for its turn."""
    held = calls.held[call]
    if not (calls.rules.leased and held.eligible):
        calls, line = first(calls)
        return _send(calls, call, line)
    if len(calls.waiting) >= calls.rules.waiting:
        error = errors.internal(
            "too many calls wait for this server", reason="busy", executed="no", backend=calls.rules.server
        )
        calls = put(calls, call, moved(held, "waited too long"))
        return calls, [ev.Outcome(held.owner, False, error.raw), ev.Forget(call)]
    calls, effects = serve(replace(calls, waiting=(*calls.waiting, call)))
    return calls, effects if call not in calls.waiting else [*effects, ev.StartWait(call)]


def serve(calls: Calls) -> Step:
    """Calls that wait take the lines that are free, in order; lines that nobody needs any more are closed."""
    effects: ev.Effects = []
    while calls.waiting:
        calls, line = _free(calls)
        if line is None:
            return calls, effects
        call, *rest = calls.waiting
        calls, sent = _send(replace(calls, waiting=tuple(rest)), call, line)
        effects += sent
    spare = [line for line, holder in calls.lines.items() if holder is None][1:] if calls.rules.leased else []
    lines = {line: holder for line, holder in calls.lines.items() if line not in spare}
    return replace(calls, lines=lines), [*effects, *map(ev.Discard, spare)]


def _free(calls: Calls) -> tuple[Calls, int | None]:
    for line, holder in calls.lines.items():
        if holder is None:
            return calls, line
    all_parked = all(calls.held[n].phase is Phase.PARKED for n in calls.lines.values() if n is not None)
    if all_parked and len(calls.lines) < calls.rules.lines:
        return _another(calls)
    return calls, None


def _another(calls: Calls) -> tuple[Calls, int]:
    line = calls.opened + 1
    return replace(calls, opened=line, lines={**calls.lines, line: None}), line


def _send(calls: Calls, call: int, line: int) -> Step:
    held = replace(moved(calls.held[call], "connection free"), line=line)
    if calls.rules.leased and held.eligible:
        calls = replace(calls, lines={**calls.lines, line: call})
    return put(calls, call, held), [ev.StopWait(call), ev.Dispatch(call, line)]


def release(calls: Calls, call: int) -> Step:
    """A call needs its turn no more."""
    mine = [line for line, holder in calls.lines.items() if holder == call]
    if not mine:
        return calls, []
    return serve(replace(calls, lines={**calls.lines, mine[0]: None}))


def dequeue(calls: Calls, call: int) -> Calls:
    """A call waits no more."""
    return replace(calls, waiting=tuple(n for n in calls.waiting if n != call))


def drop(calls: Calls, line: int) -> Calls:
    """A line is no more."""
    return replace(calls, lines={n: holder for n, holder in calls.lines.items() if n != line})
