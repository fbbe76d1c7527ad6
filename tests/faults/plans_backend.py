"""What servers do wrong, each to the victim's calls only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from actors.protocol.messages import RequestId
from tests.faults.lasting import LastingTransport
from tests.faults.play import Plan
from tests.faults.server import FORM, PATIENCE, key_of
from tests.faults.world import World
from tests.support.mcp_backend import Request, ServerRequested

Fault = Callable[[World, Request], None]

PAUSE = 0.3
"""Seconds between the arrival of a call and what goes wrong with it: then it is a stream."""


def on_call(fault: Fault, number: int = 1, times: int = 1) -> Callable[[World], None]:
    """It happens to the so-manieth call of a tool that is not the bystander's, which gets nothing else."""

    def install(world: World) -> None:
        seen = 0

        def look(request: Request) -> bool:
            nonlocal seen
            key = key_of(request)
            if not key or key.startswith("bystander"):
                return False
            seen += 1
            if not number <= seen < number + times:
                return False
            world.fire(key)
            fault(world, request)
            return True

        world.alpha.fault = look

    return install


def _later(fault: Fault, seconds: float = PAUSE) -> Fault:
    def begin(world: World, request: Request) -> None:
        async def go() -> None:
            await trio.sleep(seconds)
            fault(world, request)

        world.tools.start_soon(go)

    return begin


def _after_progress(fault: Fault) -> Fault:
    def begin(world: World, request: Request) -> None:
        request.log({"key": key_of(request)})
        _later(fault)(world, request)

    return begin


def die(world: World, request: Request) -> None:
    request.upstream.die()


def half_a_message(world: World, request: Request) -> None:
    request.upstream.garbage(b'{"jsonrpc":"2.0","id":')
    request.upstream.die()


def fail(world: World, request: Request) -> None:
    request.fail()


def fail_unsent(world: World, request: Request) -> None:
    world.alpha.executions[key_of(request)] -= 1  # it was never there
    request.fail("no")


def answer_twice(world: World, request: Request) -> None:
    for _ in range(2):
        request.text(f"twice {key_of(request)}")


def answer_twice_apart(world: World, request: Request) -> None:
    request.text(f"twice {key_of(request)}")
    _later(lambda world, request: request.text(f"late {key_of(request)}"))(world, request)


NONSENSE = (
    b"\xff\xfe",
    b"[]",
    b"null",
    b'{"jsonrpc":"2.0"}',
    b'{"id":99999,"result":{}}',
    b'{"jsonrpc":"2.0","id":null,"error":{}}',
)


def nonsense(world: World, request: Request) -> None:
    for frame in NONSENSE:
        request.upstream.garbage(frame)
    request.upstream.notify("notifications/progress", {"progressToken": "nobody's", "progress": 1})
    request.text(f"sense {key_of(request)}")


def nonsense_for_an_answer(world: World, request: Request) -> None:
    """Half of it; where streams relate messages to requests, it is known which request that was."""
    frame = json.dumps({"jsonrpc": "2.0", "id": request.id}).encode()[:-1] + b',"result":'
    request.upstream.transport.deliver(frame, request.id)


def wrong_result(world: World, request: Request) -> None:
    request.result({"content": "no list", "isError": 7})


def nothing(world: World, request: Request) -> None:
    """Never answers."""


def lose_session(world: World, request: Request) -> None:
    world.alpha.executions[key_of(request)] -= 1  # a 404 comes before execution
    request.upstream.lose_session(request)


def lose_session_later(world: World, request: Request) -> None:
    request.upstream.lose_session()


def flood(world: World, request: Request) -> None:
    async def pour() -> None:
        for n in range(3000):
            request.log({"key": key_of(request), "n": n, "fill": "x" * 200})
            if n % 50 == 0:
                await trio.lowlevel.checkpoint()
        request.text(f"flooded {key_of(request)}")

    world.tools.start_soon(pour)


def flood_unrelated(world: World, request: Request) -> None:
    for _ in range(2000):
        request.upstream.notify("notifications/resources/updated", {"uri": "test:///victim"})
        request.upstream.notify("notifications/tools/list_changed")
    request.text(f"flooded {key_of(request)}")


def ask_and_die(world: World, request: Request) -> None:
    _ask(request)
    request.upstream.die()


def ask_and_answer(world: World, request: Request) -> None:
    _ask(request)
    request.text(f"asked {key_of(request)}")


def _ask(request: Request) -> ServerRequested:
    return request.ask("elicitation/create", {**FORM, "message": key_of(request)})


def ask_many(world: World, request: Request) -> None:
    async def ask() -> None:
        for _ in range(5):
            with trio.move_on_after(PATIENCE) as waiting:
                await _ask(request).outcome()
            if waiting.cancelled_caught:
                return
        request.text(f"asked {key_of(request)}")

    world.tools.start_soon(ask)


def unreachable(world: World) -> None:
    """New connections end at once; those there are stay."""
    connect = world.alpha.connect

    def refuse(*args: Any) -> Any:
        world.fire("connection refused")
        transport = connect(*args)
        transport.end("spawn_failed", "scripted")
        return transport

    world.patches.callback(setattr, world.alpha, "connect", connect)
    world.alpha.connect = refuse


def silent(world: World) -> None:
    """New connections are made, and nothing comes over them."""

    def look(request: Request) -> bool:
        if request.method != "initialize":
            return False
        world.fire("silence")
        return True

    world.alpha.fault = look


def late_stream(seconds: float | None) -> Callable[[World], None]:
    """The GET stream of each session is there only after so long, or never."""

    def install(world: World) -> None:
        connect = world.alpha.connect

        def late(*args: Any) -> Any:
            transport = connect(*args)
            if transport.kind != "http":  # only there is a stream of its own for what belongs to no request
                return transport
            transport.holds_stream = True
            listen = transport.listen

            async def attach(after: float) -> None:
                await trio.sleep(after)
                transport.attach()

            def listens() -> None:
                world.fire("a stream that comes late")
                listen()
                if seconds is not None:
                    world.tools.start_soon(attach, seconds)

            transport.listen = listens
            return transport

        world.patches.callback(setattr, world.alpha, "connect", connect)
        world.alpha.connect = late

    return install


def slow_start(seconds: float) -> Callable[[World], None]:
    """Nothing is read before that."""

    def install(world: World) -> None:
        connect = world.alpha.connect

        def slow(*args: Any) -> Any:
            transport = connect(*args)
            hand_over, waiting = transport.pass_on, []

            async def start() -> None:
                await trio.sleep(seconds)
                transport.pass_on = hand_over
                for sent in waiting:
                    hand_over(sent)

            world.fire("a slow start")
            world.tools.start_soon(start)
            transport.pass_on = waiting.append
            return transport

        world.patches.callback(setattr, world.alpha, "connect", connect)
        world.alpha.connect = slow

    return install


def on_rest(fault: Callable[[LastingTransport, RequestId], None]) -> Callable[[World], None]:
    """It happens to the first request whose rest is asked for."""

    def install(world: World) -> None:
        def look(transport: LastingTransport, id: RequestId) -> bool:
            if world.fired:
                return False
            world.fire(f"the rest of {id}")
            fault(transport, id)
            return True

        world.alpha.memory.rest = look

    return install


def no_rest(transport: LastingTransport, id: RequestId) -> None:
    transport.fail(id)


def no_session(transport: LastingTransport, id: RequestId) -> None:
    transport.fail(id)
    transport.lose_session()


def rest_of_nothing(transport: LastingTransport, id: RequestId) -> None:
    """It says things of other requests, takes its place back, and then ends the stream."""
    transport.prime("elsewhere", id)
    transport.bring({"id": "nobody's", "result": {}}, id, 9000)
    transport.bring({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 9}}, id, 9001)
    transport.fail(id)


def forgotten(world: World) -> None:
    """The session that is gone on with is unknown there."""

    def look(request: Request) -> bool:
        if world.fired or not key_of(request) or request.upstream.transport.resumed is None:
            return False
        world.fire(key_of(request))
        lose_session(world, request)
        return True

    world.alpha.fault = look


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"server: {name}", install, frozenset(needs or ("call",)), **more)


PLANS = (
    _plan("dies at once", on_call(die)),
    _plan("dies in the middle of a call", on_call(_later(die))),
    _plan("dies in the middle of a stream", on_call(_after_progress(die))),
    _plan("dies in the middle of a call, over pipes", on_call(_later(die)), kind="stdio"),
    _plan("dies again and again", on_call(die, times=4)),
    _plan("closes after half a message", on_call(half_a_message)),
    _plan("closes after half a message, over pipes", on_call(_after_progress(half_a_message)), kind="stdio"),
    _plan("breaks off its answer", on_call(_after_progress(fail))),
    _plan("refuses the connection for a call", on_call(fail_unsent)),
    _plan("answers twice", on_call(answer_twice), harmless=True),
    _plan("answers twice, the second time late", on_call(answer_twice_apart), harmless=True),
    _plan("answers twice, over pipes", on_call(answer_twice), kind="stdio", harmless=True),
    _plan("says nonsense and then answers", on_call(nonsense), harmless=True),
    _plan("says nonsense and then answers, over pipes", on_call(nonsense), kind="stdio", harmless=True),
    _plan("answers with nonsense", on_call(nonsense_for_an_answer)),
    _plan("answers with a result of a wrong shape", on_call(wrong_result)),
    _plan("never answers", on_call(nothing), within=301.0),
    _plan("never answers after progress", on_call(_after_progress(nothing)), within=303.0),
    _plan("never answers, over pipes", on_call(nothing), kind="stdio", within=301.0),
    _plan("has lost its session", on_call(lose_session)),
    _plan("has lost its session, again and again", on_call(lose_session, times=3)),
    _plan("loses its session in the middle of a call", on_call(_after_progress(lose_session_later))),
    _plan("floods with log messages", on_call(flood), harmless=True),
    _plan("floods with log messages, over pipes", on_call(flood), kind="stdio", harmless=True),
    _plan("floods with news", on_call(flood_unrelated), harmless=True),
    _plan("asks and dies", on_call(ask_and_die)),
    _plan("asks and dies, over pipes", on_call(ask_and_die), kind="stdio"),
    _plan("asks and answers without waiting", on_call(ask_and_answer), harmless=True),
    _plan("asks five times", on_call(ask_many), harmless=True),
    _plan("has not kept the rest of an answer", on_rest(no_rest), "goes on"),
    _plan("has lost its session as a call goes on", on_rest(no_session), "goes on"),
    _plan("brings the rest of something else", on_rest(rest_of_nothing), "goes on"),
    _plan("has forgotten the session of whoever comes back", forgotten, "back", harmless=True),
    _plan("can't be reached", unreachable, "connects"),
    _plan("never finishes the handshake", silent, "connects", within=31.0),
    _plan("opens its stream late", late_stream(0.8), "connects", within=31.0),
    _plan("never opens its stream", late_stream(None), "connects", within=31.0),
    *(
        _plan(f"{name}, over {words}", install, kind=kind, **more)
        for kind, words in (("sse", "HTTP+SSE"), ("ws", "a WebSocket"))
        for name, install, more in (
            ("dies in the middle of a call", on_call(_later(die)), {}),
            ("answers twice", on_call(answer_twice), {"harmless": True}),
            ("never answers", on_call(nothing), {"within": 301.0}),
            ("asks and dies", on_call(ask_and_die), {}),
        )
    ),
    _plan("starts slowly", slow_start(15.0), "connects", kind="stdio", within=31.0),
    _plan("starts too slowly", slow_start(35.0), "connects", kind="stdio", within=66.0),
)
