"""What must be true of a run: pure functions of its story, each of which names everything that is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.chaos.story import Call, Exchange, Loss, Message, SdkCall, Story, is_answer

HUNG = 15.0
"""Seconds that nothing may take, beyond what the tool and its user take."""
SHARE = 0.8
"""Of the requests that must end with a result."""
CLOSE = 1.0
"""Seconds between the death of a process and the moment when everybody has noticed that its connections are gone."""
POLITE = frozenset({429, 503})
"""With these statuses a replica may refuse a request."""

Rule = Callable[[Story], Iterator[str]]


def judge(story: Story) -> list[str]:
    """Everything that is wrong, in the order of the rules."""
    return [f"{rule.__name__}: {wrong}" for rule in RULES for wrong in rule(story)]


def one_answer(story: Story) -> Iterator[str]:
    """At most one answer to each request; one, wherever the client had an event id or the process that held its
    connection lived, and else its connection broke. (Until a handshake is done there is no session to come back to.)"""
    for call in story.calls:
        places = {(seen.id or str(seen.at)) for seen in call.answers}
        if len(places) > 1:
            yield f"{about(call)} has {len(places)} answers"
        if not places and call.method != "initialize" and not story.ended(call.session, call.ended):
            yield from (f"{about(call)} {wrong}" for wrong in _unanswered(call, story))
    for key, count in Counter(call.key for call in story.sdk_calls).items():
        if count > 1:
            yield f"{key} has {count} outcomes"
    for sdk in story.sdk_calls:
        lost = (loss for loss in story.losses if loss.began < sdk.ended and sdk.began - CLOSE < loss.until)
        if sdk.outcome == "timeout" and not any(lost):
            yield f"{sdk.key} got nothing at all"


def _unanswered(call: Call, story: Story) -> Iterator[str]:
    refusal, last = call.refusal, call.exchanges[-1]
    if refusal is not None and (call.has_id or refusal.status not in POLITE):
        yield f"was refused with {refusal.status}"
    elif refusal is not None or (call.cancelled and last.end == "whole" and last.status == 200):
        return
    elif call.has_id:
        yield "had an event id, and got no answer"
    elif call.given_up:
        yield "got nothing at all"
    elif last.end == "whole" and last.status == 200:
        yield "came to an end in order, without an answer"
    elif not _was_lost(last, story.losses):
        yield f"broke, though {last.holder or 'nobody'} lived"


def _was_lost(exchange: Exchange, losses: Sequence[Loss]) -> bool:
    """Whether the process that held the connection ended meanwhile, or was not there to take it. (A drain takes no new
    ones.)"""
    return any(
        loss.replica == exchange.holder
        and loss.kind != "pause"
        and exchange.began <= loss.until + CLOSE
        and (loss.left if loss.kind == "drain" and exchange.taken else loss.began) - CLOSE <= exchange.ended
        for loss in losses
    )


def streams(story: Story) -> Iterator[str]:
    """Each stream comes without a gap, without an event twice, and in order: by the numbers that the server gave, and
    by those in the event ids."""
    for call in story.calls:
        yield from (f"{about(call)} {wrong}" for wrong in _event_ids(call.exchanges))
        steps = [seen[1] for seen in progress(call)]
        yield from (f"{about(call)} {wrong}" for wrong in _steps(steps, call.steps if call.result else None))
    for listening in story.listenings:
        yield from (f"the stream of {listening.who} {wrong}" for wrong in _event_ids(listening.exchanges))
    for sdk in story.sdk_calls:
        expected = sdk.steps if sdk.outcome == "result" else None
        yield from (f"{sdk.key} {wrong}" for wrong in _steps([step for _, step in sdk.progress], expected))


def _steps(steps: Sequence[int], expected: int | None) -> Iterator[str]:
    if list(steps) != list(range(1, len(steps) + 1)) or (expected is not None and len(steps) != expected):
        yield f"reported {list(steps)}, of {expected if expected is not None else 'several'}"


def _event_ids(exchanges: Sequence[Exchange]) -> Iterator[str]:
    """Event ids are `stream:epoch-number`; each stream counts on by one."""
    reached: dict[str, tuple[int, int]] = {}
    for exchange in exchanges:
        for seen in exchange.seen:
            if seen.id is None:
                continue
            stream, _, place = seen.id.partition(":")
            epoch, number = (int(part) for part in place.split("-"))
            before = reached.get(stream)
            if before is not None and (number != before[1] + 1 or epoch < before[0]):
                yield f"went from {stream}:{before[0]}-{before[1]} to {seen.id}"
            reached[stream] = epoch, number


def progress(call: Call) -> Iterator[tuple[str, int]]:
    """What a call was told of its progress, over all its exchanges: key and step."""
    for exchange in call.exchanges:
        for seen in exchange.seen:
            if (seen.message or {}).get("method") == "notifications/progress":
                assert seen.message is not None
                yield seen.message["params"]["message"], seen.message["params"]["progress"]


def isolation(story: Story) -> Iterator[str]:
    """Nobody sees what is another's: every key that a call is shown is its own, no response is to another request, and
    a session hears only of the resource that it subscribed to."""
    for call in story.calls:
        for exchange in call.exchanges:
            for seen in exchange.seen:
                yield from (f"{about(call)} was shown {wrong}" for wrong in _foreign(call, seen.message or {}))
    for listening in story.listenings:
        for exchange in listening.exchanges:
            for seen in exchange.seen:
                said = seen.message or {}
                uri = str((said.get("params") or {}).get("uri", ""))
                if uri and uri.rpartition("/")[2] != listening.who:
                    yield f"{listening.who} heard of {uri}"
                if said and "method" not in said:
                    yield f"{listening.who} was given an answer on the stream of no request: {said}"
    for sdk in story.sdk_calls:
        shown = {key for key, _ in sdk.progress} | set(KEY.findall(sdk.text))
        yield from (f"{sdk.key} was shown {key}" for key in shown - {sdk.key})
    for note in story.notes:
        if note.what == "answered" and note.detail not in (note.key, "refused", "nothing"):
            yield f"{note.key} was answered with the form of {note.detail}"


KEY = re.compile(r"\b\w+\.\d+\b")
"""The argument of a call: who, and a number."""


def _foreign(call: Call, message: Message) -> Iterator[str]:
    if "method" not in message and message and not is_answer(message, call.id):
        yield f"the answer to {message.get('id')}"
    elif call.tool:
        params = message.get("params") or {}
        content = (message.get("result") or {}).get("content") or ()
        texts = [str(params.get("message", "")), *(str(block.get("text", "")) for block in content)]
        yield from {key for text in texts for key in KEY.findall(text)} - {call.key}


def executions(story: Story) -> Iterator[str]:
    """Each call of a tool is executed at most once, and not at all if that is what its client was told."""
    count = Counter(note.key for note in story.notes if note.what == "executed")
    yield from (f"{key} was executed {times} times" for key, times in count.items() if times > 1)
    for call in story.calls:
        if not call.tool:
            continue
        said = ((call.error or {}).get("data") or {}).get("executed")
        if count[call.key] and (said == "no" or (call.refusal is not None and not call.has_id)):
            yield f"{about(call)} was executed, and denied"
        if not count[call.key] and call.result is not None:
            yield f"{about(call)} was never executed, and has a result"
    for sdk in story.sdk_calls:
        if count[sdk.key] and sdk.executed == "no":
            yield f"{sdk.key} was executed, and denied ({sdk.text}, {sdk.began:.2f} to {sdk.ended:.2f})"


def hangs(story: Story) -> Iterator[str]:
    """Nothing takes longer than `HUNG` seconds. Time does not count in which the process that held the connection was
    stopped; it is counted anew when a further replica is lost. (Who held that of an SDK is not known; what one of them
    waits for in vain is a matter of `one_answer`.)"""
    for call in story.calls:
        took, most = waited(call, story), (HUNG + call.takes) * story.slowness
        if took > most:
            yield f"{about(call)} took {took:.1f} s, of at most {most:.1f}"
    paused = [(loss.began, loss.until) for loss in story.losses if loss.kind == "pause"]
    for sdk in story.sdk_calls:
        took, most = _counted(sdk, story, paused), (HUNG + sdk.takes) * story.slowness
        if sdk.outcome != "timeout" and took > most:
            yield f"{sdk.key} took {took:.1f} s, of at most {most:.1f}"


def waited(call: Call, story: Story) -> float:
    """How long it took, as far as that counts."""
    stopped = [
        (max(loss.began, exchange.began), min(loss.until, exchange.ended))
        for exchange in call.exchanges
        for loss in story.losses
        if loss.kind == "pause" and loss.replica == exchange.holder
    ]
    return _counted(call, story, stopped)


def _counted(call: Call | SdkCall, story: Story, stopped: Sequence[tuple[float, float]]) -> float:
    lost = (at for loss in story.losses for at in (loss.began, loss.left) if at < call.ended)
    since = max([call.began, *lost])
    return call.ended - since - covered([*stopped, *story.stalls], since, call.ended)


def covered(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """How much of this time lies in one of the spans."""
    total, reached = 0.0, since
    for begin, end in sorted(spans):
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            total, reached = total + end - begin, end
    return total


def sessions(story: Story) -> Iterator[str]:
    """No session is lost, and everybody is served again at the end."""
    for call in story.calls:
        if (
            call.tool
            and not story.ended(call.session, call.ended)
            and 404 in (exchange.status for exchange in call.exchanges)
        ):
            yield f"{about(call)}: the session was not found"
    for listening in story.listenings:
        lasting = [e for e in listening.exchanges if not story.ended(listening.session, e.ended)]
        statuses = {exchange.status for exchange in lasting} & {400, 404}
        if statuses:
            yield f"the stream of {listening.who} could not be resumed: {statuses}"
    yield from (f"{who} was not served again" for who in story.unserved)
    # One that was lost before it had served anything is one whose handshake was broken off.
    good = {(sdk.who, sdk.session) for sdk in story.sdk_calls if sdk.outcome == "result"}
    yield from (
        f"{sdk.key}: the session was not found"
        for sdk in story.sdk_calls
        if sdk.lost and (sdk.who, sdk.session) in good
    )
    served = {sdk.key.rpartition(".")[0] for sdk in story.sdk_calls if sdk.outcome == "result"}
    yield from (f"{who} was never served" for who in story.sdks if who not in served)


def enough_results(story: Story) -> Iterator[str]:
    """Most requests end with a result, so that errors can't hide a fault."""
    share, total = results(story)
    if total and share < SHARE:
        yield f"only {share:.1%} of {total} requests have a result"


def results(story: Story) -> tuple[float, int]:
    """The share of requests with a result, and how many requests there were."""
    wanted = [c for c in story.calls if not c.cancelled and not story.ended(c.session, c.ended)]
    good = [call.result is not None for call in wanted]
    good += [call.outcome == "result" for call in story.sdk_calls]
    return sum(good) / max(1, len(good)), len(good)


RULES: Sequence[Rule] = (one_answer, streams, isolation, executions, hangs, sessions, enough_results)


def about(call: Call) -> str:
    way = " ".join(
        f"[{e.method} {e.began:.2f} {e.holder[-5:]} {e.status} {len(e.seen)} {e.end} {e.ended:.2f} {e.body}]"
        for e in call.exchanges
    )
    return f"{call.key} ({call.tool or call.method}, {call.backend}, {call.session[:6]}, {way})"
