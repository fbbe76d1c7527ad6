"""The loop of a call whose backend needs input, for a caller who is asked by requests (2026-07-28, patterns/mrtr).

Every question of an answer goes to the client at once. When the last one is answered, the call is sent again under
another id, with the answers and with the backend's state as it came. There is no place for an error among the answers:
an elicitation that fails is cancelled; sampling or roots that fail end the call.
"""

from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import errors, payload, translate
from actors.protocol import link_events as ev
from actors.protocol.bridge import input_required
from actors.protocol.modern.link_calls import malformed, proceed
from actors.protocol.modern.link_events import AnswerGiven, Effects, StartTimer, StopTimer, Withdraw
from actors.protocol.modern.link_state import Asking, Consent, Link, Question, Running, Step, numbered
from actors.protocol.modern.outcomes import QUESTIONS
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN

ROUNDS: Final = 10
"""Of questions to the client, and of requests to come again; more is a failure of the backend."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.25)
"""Seconds before a call is sent again that its backend only put off; the last one repeats."""
CONSENT_PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
"""The same while a person is busy in a browser, where the client has agreed to send them."""
CONSENT_ROUNDS: Final = 60
"""How often that is done: some five minutes. Such rounds do not count as questions."""
ELICITATION: Final = "elicitation/create"
CANCELLED: Final = Raw(b'{"action":"cancel"}')
ACCEPTED: Final = Raw(b'{"action":"accept"}')


def required(link: Link, running: Running, result: Raw) -> Step:
    """The backend has answered with questions, or puts the call off."""
    try:
        needed = input_required.read(result)
    except errors.Malformed:
        needed = None
    if needed is None or any(method not in QUESTIONS for method, _ in needed.requests.values()):
        return malformed(link, running)
    state = payload.dumps(needed.state) if needed.state is not None else Raw(b"")
    running = replace(running, answers=Raw(b""), state=state)
    answers: dict[str, Raw] = {}
    questions: dict[str, tuple[Question, Raw]] = {}
    for key, (method, params) in needed.requests.items():
        if _agreed(running, key, method, params):
            answers[key] = ACCEPTED
        else:
            link, ask_id = numbered(link)
            questions[ask_id] = _question(ask_id, key, method, params)
    if not questions and answers:
        return _pause(link, replace(running, answers=payload.dumps(answers)), CONSENT_PAUSES, CONSENT_ROUNDS)
    running = replace(running, round=running.round + 1)
    if running.round > ROUNDS:
        return _too_many(link, running)
    if not questions:
        return _pause(link, running, PAUSES, ROUNDS)
    call = running.called.call
    asking = Asking(running, {id: question for id, (question, _) in questions.items()}, answers)
    asks: Effects = [ev.Ask(call, id, question.method, params) for id, (question, params) in questions.items()]
    return replace(link, asking={**link.asking, call: asking}), asks


def _url(method: str, params: Raw) -> str | None:
    """The URL that a client is to open."""
    if method != ELICITATION:
        return None
    try:
        present = payload.members(params)
    except errors.Malformed:
        return None
    return payload.text_or_none(present.get("url")) if payload.text_or_none(present.get("mode")) == "url" else None


def _agreed(running: Running, key: str, method: str, params: Raw) -> bool:
    """Whether the client has agreed to this before: it is not done yet, and they are not asked twice."""
    url = _url(method, params)
    return url is not None and any(consent.url == url or consent.key == key for consent in running.consents)


def _question(ask_id: str, key: str, method: str, params: Raw) -> tuple[Question, Raw]:
    """A question as a client of the other era gets it: a URL has an id there."""
    url, id = _url(method, params), f"elicit-{ask_id}"
    lowered = translate.server_request(method, params, LATEST_HANDSHAKE, MODERN, elicitation_id=id)
    # What can't be asked of this client is found out where its revision is known.
    asked = params if isinstance(lowered, translate.Unbridgeable) else lowered
    if url is None:
        return Question(key, method), asked
    return Question(key, method, Consent(key, url, id)), asked


def _pause(link: Link, running: Running, pauses: tuple[float, ...], most: int) -> Step:
    if running.pauses >= most:
        return _too_many(link, running)
    seconds = pauses[min(running.pauses, len(pauses) - 1)]
    running = replace(running, pauses=running.pauses + 1)
    call = running.called.call
    return replace(link, pausing={**link.pausing, call: running}), [StartTimer(("pause", call), seconds)]


def _too_many(link: Link, running: Running) -> Step:
    text, server = "the server needs input without end", link.server or None
    error = errors.internal(text, reason="input_rounds", executed="unknown", backend=server)
    return link, [ev.Finish(running.called.call, False, error.raw)]


def due(link: Link, call: ev.CallKey) -> Step:
    """The pause is over."""
    running = link.pausing.get(call)
    if running is None:
        return link, []
    return proceed(replace(link, pausing={c: r for c, r in link.pausing.items() if c != call}), running)


# Answers -----------------------------------------------------------------------------------------------------


def answered(link: Link, event: AnswerGiven) -> Step:
    """One answer of the client."""
    asking = next((asking for asking in link.asking.values() if event.id in asking.open), None)
    if asking is None:
        return link, [ev.Tally("late_answer")]
    question, call = asking.open[str(event.id)], asking.running.called.call
    rest = {id: other for id, other in asking.open.items() if id != event.id}
    ok, answer = _checked(question, event.ok, event.payload)
    if not ok:
        if question.method != ELICITATION:
            return _stopped(link, replace(asking, open=rest), event.payload)
        answer = CANCELLED
    running = asking.running
    if question.consent is not None and ok and _action(answer) == "accept":
        running = replace(running, consents=(*running.consents, question.consent))
    asking = Asking(running, rest, {**asking.answers, question.key: answer})
    if rest:
        return replace(link, asking={**link.asking, call: asking}), []
    link = replace(link, asking=_but(link, call))
    return proceed(link, replace(running, answers=payload.dumps(asking.answers)))


def _checked(question: Question, ok: bool, answer: Raw) -> tuple[bool, Raw]:
    """An answer that is none of its kind counts as an error."""
    if ok:
        try:
            input_required.check(question.method, answer)
        except errors.Refusal:
            return False, answer
    return translate.answer(question.method, ok, answer, MODERN)


def _action(answer: Raw) -> str | None:
    try:
        return payload.text_or_none(payload.members(answer).get("action"))
    except errors.Malformed:
        return None


def _but(link: Link, call: ev.CallKey) -> dict[ev.CallKey, Asking]:
    return {c: a for c, a in link.asking.items() if c != call}


def _stopped(link: Link, asking: Asking, error: Raw) -> Step:
    """The client did not give what the call can't do without. A model that called a tool is told so as a result."""
    called = asking.running.called
    effects: Effects = [Withdraw(called.caller, id) for id in asking.open]
    link = replace(link, asking=_but(link, called.call))
    try:
        message = errors.parse_error_member(error).message
    except ValueError:
        message = "the client's answer is malformed"
        error = errors.internal(message, reason="malformed_answer", executed="unknown", backend=link.server or None).raw
    if called.method != "tools/call":
        return link, [*effects, ev.Finish(called.call, False, error)]
    words = [{"type": "text", "text": f"The client did not provide what the tool needs: {message}"}]
    return link, [*effects, ev.Finish(called.call, True, payload.dumps({"content": words, "isError": True}))]


def abandoned(link: Link, call: ev.CallKey) -> Step:
    """Nobody waits for the call any more; nothing of it is at the backend."""
    asking = link.asking.get(call)
    if asking is not None:
        caller = asking.running.called.caller
        return replace(link, asking=_but(link, call)), [Withdraw(caller, id) for id in asking.open]
    if call in link.pausing:
        pausing = {c: r for c, r in link.pausing.items() if c != call}
        return replace(link, pausing=pausing), [StopTimer(("pause", call))]
    return link, []
