"""What servers do wrong, each to the victim's calls only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from tests.faults.play import Plan
from tests.faults.server import PATIENCE, key_of
from tests.faults.world import World
from tests.support.mcp_backend import Request

Fault = Callable[[World, Request], None]

PAUSE = 0.3
"""Seconds between the arrival of a call and what goes wrong with it: then it is a stream."""


def _on_call(fault: Fault, number: int = 1, times: int = 1) -> Callable[[World], None]:
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
    request.link.die()


def half_a_message(world: World, request: Request) -> None:
    request.link.garbage(b'{"jsonrpc":"2.0","id":')
    request.link.die()


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


def nonsense(world: World, request: Request) -> None:
    for frame in (b"\xff\xfe", b"[]", b"null", b'{"jsonrpc":"2.0"}', b'{"id":99999,"result":{}}', b'{"jsonrpc":"2.0","id":null,"error":{}}'):
        request.link.garbage(frame)
    request.link.notify("notifications/progress", {"progressToken": "nobody's", "progress": 1})
    request.text(f"sense {key_of(request)}")


def nonsense_for_an_answer(world: World, request: Request) -> None:
    related = request.id if request.link.backend.kind == "http" else None
    request.link.transport.deliver(b'{"jsonrpc":"2.0","id":%s,"result":' % repr(request.id).replace("'", '"').encode(), related)
    if related is None:  # who asked is not known from the frame, so nothing else ends it
        request.link.die()


def wrong_result(world: World, request: Request) -> None:
    request.result({"content": "no list", "isError": 7})


def nothing(world: World, request: Request) -> None:
    """Never answers."""


def lose_session(world: World, request: Request) -> None:
    world.alpha.executions[key_of(request)] -= 1  # a 404 comes before execution
    request.link.lose_session(request)


def lose_session_later(world: World, request: Request) -> None:
    request.link.lose_session()


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
        request.link.notify("notifications/resources/updated", {"uri": "test:///victim"})
        request.link.notify("notifications/tools/list_changed")
    request.text(f"flooded {key_of(request)}")


def ask_and_die(world: World, request: Request) -> None:
    request.ask("elicitation/create", {"message": key_of(request), "requestedSchema": {"type": "object", "properties": {}}})
    request.link.die()


def ask_and_answer(world: World, request: Request) -> None:
    request.ask("elicitation/create", {"message": key_of(request), "requestedSchema": {"type": "object", "properties": {}}})
    request.text(f"asked {key_of(request)}")


def ask_many(world: World, request: Request) -> None:
    async def ask() -> None:
        for n in range(20):
            question = request.ask("elicitation/create", {"message": f"{key_of(request)} {n}", "requestedSchema": {"type": "object", "properties": {}}})
            with trio.move_on_after(PATIENCE):
                await question.outcome()
        request.text(f"asked {key_of(request)}")

    world.tools.start_soon(ask)


def _unreachable(attribute: str) -> Callable[[World], None]:
    """Connections of the victim fail from now on; those there are stay."""

    def install(world: World) -> None:
        connect = world.alpha.connect

        def refuse(*args: Any) -> Any:
            world.fire(attribute)
            setattr(world.alpha, attribute, True)
            try:
                return connect(*args)
            finally:
                if attribute == "down":
                    world.alpha.down = False

        if attribute == "silent":
            world.alpha.fault = lambda request: not key_of(request).startswith("bystander") and request.method != "tools/call" and _fired(world)
        else:
            world.patches.callback(setattr, world.alpha, "connect", connect)
            world.alpha.connect = refuse

    return install


def _fired(world: World) -> bool:
    world.fire("silent")
    return True


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"server: {name}", install, frozenset(needs or ("call",)), **more)


PLANS = (
    _plan("dies at once", _on_call(die)),
    _plan("dies in the middle of a call", _on_call(_later(die))),
    _plan("dies in the middle of a stream", _on_call(_after_progress(die))),
    _plan("dies in the middle of a call, over pipes", _on_call(_later(die)), kind="stdio"),
    _plan("dies again and again", _on_call(die, times=4)),
    _plan("closes after half a message", _on_call(half_a_message)),
    _plan("closes after half a message, over pipes", _on_call(_after_progress(half_a_message)), kind="stdio"),
    _plan("breaks off its answer", _on_call(_after_progress(fail))),
    _plan("refuses the connection for a call", _on_call(fail_unsent)),
    _plan("answers twice", _on_call(answer_twice), harmless=True),
    _plan("answers twice, the second time late", _on_call(answer_twice_apart), harmless=True),
    _plan("answers twice, over pipes", _on_call(answer_twice), kind="stdio", harmless=True),
    _plan("says nonsense and then answers", _on_call(nonsense), harmless=True),
    _plan("says nonsense and then answers, over pipes", _on_call(nonsense), kind="stdio", harmless=True),
    _plan("answers with nonsense", _on_call(nonsense_for_an_answer)),
    _plan("answers with a result of a wrong shape", _on_call(wrong_result)),
    _plan("never answers", _on_call(nothing)),
    _plan("never answers after progress", _on_call(_after_progress(nothing))),
    _plan("never answers, over pipes", _on_call(nothing), kind="stdio"),
    _plan("has lost its session", _on_call(lose_session)),
    _plan("has lost its session, again and again", _on_call(lose_session, times=3)),
    _plan("loses its session in the middle of a call", _on_call(_after_progress(lose_session_later))),
    _plan("floods with log messages", _on_call(flood), harmless=True),
    _plan("floods with log messages, over pipes", _on_call(flood), kind="stdio", harmless=True),
    _plan("floods with news", _on_call(flood_unrelated), harmless=True),
    _plan("asks and dies", _on_call(ask_and_die)),
    _plan("asks and dies, over pipes", _on_call(ask_and_die), kind="stdio"),
    _plan("asks and answers without waiting", _on_call(ask_and_answer), harmless=True),
    _plan("asks twenty times", _on_call(ask_many), harmless=True),
    _plan("can't be reached", _unreachable("down"), "connects"),
    _plan("never finishes the handshake", _unreachable("silent"), "connects"),
)
