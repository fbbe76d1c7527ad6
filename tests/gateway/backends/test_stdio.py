"""The stdio transport against real child processes, well-behaved and not."""

import json
import os
import re
import signal
import sys
import textwrap
from dataclasses import replace

import pytest
import trio
import trio.testing

from actors.ports import FrameAccepted, FrameReceived, RequestFailed, Spoke, TransportClosed
from actors.protocol.table import Confinement, StdioTarget
from gateway.backends.guardian import Guardian
from gateway.backends.stdio import STDERR_CHARACTERS, Offers, StdioLimits, StdioTransport
from gateway.observability import Redaction
from gateway.wire.lines import FRAMES_PER_TURN
from gateway.wire.process import Patience
from tests.support.patience import PATIENCE

ECHO = """
    import sys
    for line in sys.stdin:
        sys.stdout.write(line)
        sys.stdout.flush()
"""
QUICK = StdioLimits(
    patience=Patience(0.3, 0.3, 1.0), patience_cancelled=Patience(0.1, 0.2, 1.0), slot_wait=0.1, message_bytes=1000
)


def python(script: str, *args: str, **options: object) -> StdioTarget:
    return StdioTarget(sys.executable, ("-S", "-u", "-c", textwrap.dedent(script), *args), **options)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie that its new parent has not collected does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


async def until_dead(*pids: int) -> None:
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            with trio.fail_after(PATIENCE):
                await trio.lowlevel.wait_readable(handle)
        finally:
            os.close(handle)


@pytest.fixture
async def guardian():
    guardian = Guardian()
    yield guardian
    await guardian.aclose()


@pytest.fixture
async def connect(guardian, events, log, nursery):
    """Starts a transport; its events go to `events`, but for the first sign of life where it is of no interest."""

    of_all = trio.CapacityLimiter(10)

    def start(target, *, limits=QUICK, slots=None, run=True, emit=None, **more):
        slots = slots or of_all
        emit = emit or (lambda event: None if isinstance(event, Spoke) else events(event))
        transport = StdioTransport("demo", target, emit, guardian=guardian, slots=slots, log=log, limits=limits, **more)
        if run:
            nursery.start_soon(transport.run)
        return transport

    with trio.fail_after(PATIENCE):
        yield start


async def test_what_is_sent_before_and_after_the_start_comes_back_in_order(connect, events):
    transport = connect(python(ECHO), run=False)
    transport.send(b'{"n":1}', id=1)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            transport.send(b'{"n":2}', tag=7)
            assert await events.next(FrameReceived) == FrameReceived(b'{"n":1}')
            assert await events.next(FrameReceived) == FrameReceived(b'{"n":2}')
            transport.close()
    assert events.of(FrameAccepted) == [FrameAccepted(7)]
    assert events.all[-1] == TransportClosed("closed", "demo was closed")


async def test_raw_newlines_between_tokens_do_not_end_the_message(connect, events):
    connect(python(ECHO)).send(b'{\n "a": 1,\r\n "b": 2\n}', id=1)
    frame = (await events.next(FrameReceived)).frame
    assert b"\n" not in frame
    assert frame.replace(b" ", b"").replace(b"\r", b"") == b'{"a":1,"b":2}'


async def test_garbage_is_logged_and_the_connection_survives_it(connect, events, log):
    script = """
        import sys
        out = sys.stdout.buffer
        out.write(b"hello, I am a server\\n\\n\\xff\\xfe garbage\\r\\n")
        out.write(b'{"big":"' + b"x" * 2000 + b'"}\\n')
        out.write(b'  {"ok":1}\\r\\n{"ok"')
        out.flush()
        out.write(b':2}\\n{"half')
        out.flush()
    """
    connect(python(script))
    assert await events.next() == FrameReceived(b'{"ok":1}')
    assert await events.next() == FrameReceived(b'{"ok":2}')
    assert isinstance(await events.next(), TransportClosed)
    dropped = [(line["why"], line["bytes"]) for line in log.of("backend_line_dropped")]
    assert dropped == [
        ("not JSON", 20),
        ("not JSON", 10),
        ("longer than 1000 bytes", 2010),
        ("cut off by the end of the output", 6),
    ]


async def test_whoever_waits_for_what_is_too_large_is_told_at_once(connect, events):
    script = """
        import json, sys
        huge = {"text": "x" * 2000}
        def say(message):
            print(json.dumps(message), flush=True)
        say({"jsonrpc": "2.0", "id": "a.1", "result": huge})
        say({"result": huge, "jsonrpc": "2.0", "id": "a.2"})
        say({"method": "sampling/createMessage", "params": huge, "jsonrpc": "2.0", "id": 0})
        sys.stdout.write(sys.stdin.readline())
        sys.stdout.flush()
    """
    connect(python(script))
    for id in ("a.1", "a.2"):
        failed = await events.next(RequestFailed)
        assert (failed.id, failed.reason, failed.executed) == (id, "too_large", "unknown")
        assert re.search(r"demo sent an answer of 20\d\d bytes, and limits.messageBytes allows 1000", failed.message)
    refused = json.loads((await events.next(FrameReceived)).frame)
    assert (refused["id"], refused["error"]["code"]) == (0, -32600)


async def test_a_flood_of_garbage_does_not_flood_the_log(connect, events, log):
    connect(python("import sys; sys.stdout.write('noise\\n' * 5000); sys.stderr.write('noise\\n' * 5000)"))
    await events.next(TransportClosed)
    assert len(log.of("backend_line_dropped")) < 300
    assert len(log.of("backend_stderr")) < 300


async def test_a_flood_of_messages_lets_every_other_task_have_its_turn(connect, events):
    connect(python("import sys; sys.stdout.write('{}\\n' * 5000); sys.stdout.flush(); sys.stdin.read()"))
    assert await events.longest_run(5000) <= 2 * FRAMES_PER_TURN  # the order within a turn varies


async def test_stderr_goes_to_the_log_with_the_backends_name_and_never_blocks_the_child(connect, events, log):
    script = """
        import sys
        sys.stderr.write("starting\\n" + "e" * 300000 + "\\n")
        sys.stderr.flush()
        print('{"up":true}')
        sys.stdin.read()
    """
    connect(python(script))
    assert (await events.next()).frame == b'{"up":true}'
    first, second = log.of("backend_stderr")
    assert (first["backend"], first["line"]) == ("demo", "starting")
    assert len(second["line"]) < 300


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise SystemExit(3)", "demo exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "demo was killed by SIGKILL"),
    ],
)
async def test_an_exit_closes_the_transport_and_says_how_the_child_ended(connect, events, how, message):
    connect(python(how))
    assert await events.next() == TransportClosed("exited", message)


async def test_the_last_lines_of_its_standard_error_come_with_the_end_without_credentials(
    guardian, events, log, nursery
):
    script = """
        import sys
        for n in range(50):
            print("line", n, "x" * 1000, file=sys.stderr)
        print("API_KEY=abcdef of hush-hush", file=sys.stderr)
        raise SystemExit(1)
    """
    transport = StdioTransport(
        "demo",
        python(script),
        events,
        guardian=guardian,
        slots=trio.CapacityLimiter(1),
        log=log,
        limits=replace(QUICK, stderr_lines=3),
        redact=Redaction(["hush-hush"]).foreign,
    )
    with trio.fail_after(PATIENCE):
        nursery.start_soon(transport.run)
        closed = await events.next(TransportClosed)
    assert [line[:7] for line in closed.stderr] == ["line 48", "line 49", "API_KEY"]
    assert max(map(len, closed.stderr)) == STDERR_CHARACTERS
    assert closed.stderr[-1] == "API_KEY=[redacted] of [redacted]"


async def test_of_a_command_with_arguments_in_it_only_the_first_word_is_told(connect, events):
    connect(StdioTarget("no-such-command --token hush http://10.0.0.1:80/mcp"))
    closed = await events.next(TransportClosed)
    assert closed.message == "demo: command 'no-such-command …' not found; its arguments belong into `args`"
    assert "hush" not in closed.detail


async def test_the_last_words_of_a_child_come_before_the_close(connect, events):
    connect(python("import sys; sys.stdin.readline(); print('{\"last\":1}')")).send(b"{}", id=1)
    assert await events.next() == FrameReceived(b'{"last":1}')
    assert await events.next() == TransportClosed("exited", "demo exited with status 0")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (StdioTarget("no-such-command-here"), "demo: command 'no-such-command-here' not found"),
        (StdioTarget("/etc/passwd"), "demo: command '/etc/passwd' is not executable"),
        (StdioTarget(sys.executable, cwd="/no/such/place"), "demo: working directory '/no/such/place' does not exist"),
        (StdioTarget(sys.executable, args=("a\0b",)), None),
    ],
)
async def test_a_command_that_cannot_start_closes_the_transport_with_the_reason(connect, events, target, message):
    connect(target, run=False)
    transport = connect(target)
    transport.send(b"{}", id=1)
    failed, closed = await events.next(), await events.next()
    assert isinstance(failed, RequestFailed)
    assert failed.executed == "no"
    assert closed.reason == "spawn_failed"
    assert message in (None, closed.message)


@pytest.mark.parametrize("confinement", [None, Confinement(files=64)], ids=["as it is", "confined"])
async def test_12_the_child_sees_the_configured_environment_and_none_of_our_secrets(
    connect, events, monkeypatch, confinement
):
    monkeypatch.setenv("GATEWAY_SECRET", "s3cret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    connect(replace(python(script, env=(("TOKEN", "t"), ("LANG", "de_DE.UTF-8"))), confinement=confinement))
    frame = (await events.next()).frame
    assert b"s3cret" not in frame
    assert b'"TOKEN": "t"' in frame
    assert b'"LANG": "de_DE.UTF-8"' in frame
    assert b'"PATH"' in frame


async def test_a_child_that_reads_nothing_fills_the_outbox_and_further_requests_fail_unexecuted(connect, events):
    limits = replace(QUICK, outbox_messages=4, outbox_bytes=10_000_000)
    transport = connect(python("import time; print('{}'); time.sleep(600)"), limits=limits)
    await events.next(FrameReceived)
    transport.send(b"x" * 1_000_000, id=0)
    await trio.testing.wait_all_tasks_blocked(0.05)
    for n in range(1, 7):
        transport.send(b"{}", id=n)
    assert [(failed.id, failed.executed) for failed in events.of(RequestFailed)] == [(5, "no"), (6, "no")]
    transport.forget(4)
    transport.send(b"{}", id=7)
    transport.close()
    await events.next(TransportClosed)
    assert [failed.id for failed in events.of(RequestFailed)] == [5, 6, 1, 2, 3, 7]


async def test_a_child_that_closes_its_stdin_is_ended(connect, events):
    transport = connect(python("import os, time; os.close(0); print('{}'); time.sleep(600)"))
    await events.next(FrameReceived)
    transport.send(b"{}", id=1)
    assert (await events.next(TransportClosed)).reason == "stdin_closed"


async def test_a_child_that_closes_its_stdout_is_ended(connect, events):
    connect(python("import os, time; os.close(1); time.sleep(600)"))
    assert (await events.next(TransportClosed)).reason == "stdout_closed"


async def test_close_writes_what_waits_and_lets_the_child_finish(connect, events):
    script = """
        import sys
        lines = sys.stdin.readlines()
        print('{"lines":%d}' % len(lines))
    """
    transport = connect(python(script), run=False)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            await trio.lowlevel.checkpoint()
            transport.send(b"{}", id=1)
            transport.send(b"{}")
            transport.close()
            transport.close()
    assert events.of(FrameReceived) in ([], [FrameReceived(b'{"lines":2}')])
    assert events.all[-1] == TransportClosed("closed", "demo was closed")


STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    pipes = {} if sys.argv[1] == "shared" else dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child = subprocess.Popen([sys.executable, "-S", "-c", script], **pipes)
    time.sleep(0.2)
    print('[%d,%d]' % (os.getpid(), child.pid))
    if sys.argv[2] == "stay":
        time.sleep(600)
"""


@pytest.mark.parametrize("pipes", ["shared", "own"])
@pytest.mark.parametrize(
    ("leader", "ending"),
    [("stay", "close"), ("leave", "close"), ("stay", "cancel"), ("leave", "cancel"), ("leave", "exit")],
)
async def test_nothing_of_the_group_survives_even_if_it_ignores_term(connect, events, pipes, leader, ending):
    transport = connect(python(STUBBORN, pipes, leader), run=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        frame = (await events.next(FrameReceived)).frame
        pids = [int(pid) for pid in frame.strip(b"[]").split(b",")]
        if ending == "close":
            transport.close()
        elif ending == "cancel":
            nursery.cancel_scope.cancel()
    assert isinstance(events.all[-1], TransportClosed)
    await until_dead(*pids)


async def test_a_childs_death_is_told_before_the_rest_of_its_group_has_ended(connect, events, log):
    limits = replace(QUICK, exit_drain=0.05, patience=Patience(0.3, 1.0, 1.0))
    connect(python(STUBBORN, "shared", "leave"), limits=limits)
    grandchild = int((await events.next(FrameReceived)).frame.strip(b"[]").split(b",")[1])
    assert (await events.next(TransportClosed)).reason == "exited"
    assert is_alive(grandchild)
    await until_dead(grandchild)
    assert len(events.of(TransportClosed)) == 1


async def test_children_beyond_the_cap_wait_for_a_place_and_then_give_up(connect, events):
    slots = trio.CapacityLimiter(1)
    first = connect(python(ECHO), slots=slots)
    first.send(b"{}", id=1)
    await events.next(FrameReceived)
    connect(python(ECHO), slots=slots)
    assert (await events.next(TransportClosed)).reason == "backend_full"
    first.close()
    assert (await events.next(TransportClosed)).reason == "closed"
    third = connect(python(ECHO), slots=slots)
    third.send(b"{}", id=1)
    await events.next(FrameReceived)


async def test_the_first_byte_of_its_output_says_that_it_has_started(connect, events):
    script = """
        import sys
        sys.stderr.write("installing\\n")
        sys.stdin.readline()
        sys.stdout.write("a banner\\n" + "{}\\n")
        sys.stdout.flush()
        sys.stdin.readline()
    """
    transport = connect(python(script), emit=events)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert events.all == []
    transport.send(b"{}", id=1)
    assert await events.next() == Spoke()
    assert await events.next() == FrameReceived(b"{}")


PID = """
    import os, sys
    for line in sys.stdin:
        sys.stdout.write('{"pid":%d,"half":' % os.getpid())
        sys.stdout.flush()
        sys.stdout.write(line.strip() + '}\\n')
        sys.stdout.flush()
"""


class TestHandingOver:
    """A child that has only refused an era serves the next transport to the same target."""

    @pytest.fixture
    def second(self, events):
        """What the transport that comes second says."""
        return type(events)()

    async def asked(self, transport, events, id=1):
        transport.send(b"1", id=id)
        return (await events.next(FrameReceived)).frame

    async def test_the_next_transport_takes_the_process_and_its_slot(self, connect, events, second, log):
        offers, slots = Offers(), trio.CapacityLimiter(1)
        first = connect(python(PID), offers=offers, slots=slots)
        frame = await self.asked(first, events)
        first.hand_over()
        other = connect(python(PID), offers=offers, slots=slots, emit=second)
        assert (first.warm, other.warm) == (False, True)
        assert await self.asked(other, second) == frame
        assert (await events.next(TransportClosed)).reason == "closed"
        assert len(log.of("backend_started")) == 1
        assert log.of("backend_ended") == []
        other.close()
        await second.next(TransportClosed)
        assert len(log.of("backend_ended")) == 1
        assert slots.borrowed_tokens == 0

    async def test_one_to_another_target_does_not(self, connect, events, second, log):
        offers = Offers()
        first = connect(python(PID), offers=offers)
        frame = await self.asked(first, events)
        first.hand_over()
        other = connect(python(PID, "another"), offers=offers, emit=second)
        assert not other.warm
        assert await self.asked(other, second) != frame

    async def test_a_process_goes_to_one_transport_alone(self, connect, events, second):
        offers = Offers()
        first = connect(python(PID), offers=offers)
        frame = await self.asked(first, events)
        first.hand_over()
        heirs = [connect(python(PID), offers=offers, emit=second) for _ in range(2)]
        assert [heir.warm for heir in heirs] == [True, False]
        assert await self.asked(heirs[0], second) == frame
        assert await self.asked(heirs[1], second) != frame

    async def test_nobody_comes_and_it_is_ended(self, connect, events, log):
        offers = Offers()
        first = connect(python(PID), offers=offers, limits=replace(QUICK, hand_over=0.05))
        frame = await self.asked(first, events)
        first.hand_over()
        await until_dead(int(frame.split(b":")[1].partition(b",")[0]))
        await events.next(TransportClosed)
        assert not connect(python(PID), offers=offers, run=False).warm

    async def test_one_that_ends_meanwhile_is_not_given_to_anybody(self, connect, events, second):
        offers = Offers()
        script = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.exit(3)"
        first = connect(python(script), offers=offers, limits=replace(QUICK, hand_over=60))
        await self.asked(first, events)
        first.hand_over()
        await events.next(TransportClosed)
        assert not connect(python(script), offers=offers, run=False).warm

    async def test_the_end_of_one_that_was_taken_is_told_to_whoever_has_it(self, connect, events, second):
        offers = Offers()
        script = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); sys.exit(3)"
        first = connect(python(script), offers=offers)
        await self.asked(first, events)
        first.hand_over()
        other = connect(python(script), offers=offers, emit=second)
        other.send(b"1", id=1)
        assert await second.next(TransportClosed) == TransportClosed("exited", "demo exited with status 3")

    async def test_one_that_was_cancelled_before_it_began_ends_the_process(self, connect, events, second):
        offers = Offers()
        first = connect(python(PID), offers=offers)
        frame = await self.asked(first, events)
        first.hand_over()
        other = connect(python(PID), offers=offers, emit=second, run=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run)
            nursery.cancel_scope.cancel()
        assert second.of(TransportClosed)
        await until_dead(int(frame.split(b":")[1].partition(b",")[0]))

    async def test_one_that_is_being_ended_is_not_given_to_anybody(self, connect, events):
        offers = Offers()
        script = "import os, time; print('{\"pid\":%d}' % os.getpid()); time.sleep(600)"
        stubborn = replace(QUICK, hand_over=60, patience_cancelled=Patience(stdin_closed=60))
        first = connect(python(script), offers=offers, limits=stubborn, run=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            frame = (await events.next(FrameReceived)).frame
            first.hand_over()
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked(0.05)
                heir = connect(python(script), offers=offers, run=False)
                os.kill(int(frame.strip(b"}").split(b":")[1]), signal.SIGKILL)
        assert not heir.warm


async def test_closing_before_the_start_starts_nothing(connect, events, log):
    transport = connect(python(ECHO), run=False)
    transport.send(b"{}", id=1)
    transport.close()
    await transport.run()
    assert [type(event) for event in events.all] == [RequestFailed, TransportClosed]
    assert log.of("backend_started") == []


async def test_a_killed_gateway_takes_its_children_with_it(tmp_path):
    """The guardian ends the groups of a gateway that could not clean up, grandchildren included."""
    gateway = textwrap.dedent(f"""
        import sys, trio, structlog
        from actors.protocol.table import StdioTarget
        from gateway.backends.guardian import Guardian
        from gateway.backends.stdio import StdioLimits, StdioTransport
        target = StdioTarget(sys.executable, ("-S", "-u", "-c", {textwrap.dedent(STUBBORN)!r}, "own", "stay"))
        def emit(event):
            if hasattr(event, "frame"):
                print(event.frame.decode(), flush=True)
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        transport = StdioTransport("demo", target, emit, guardian=Guardian(), slots=trio.CapacityLimiter(1),
                                   log=log, limits=StdioLimits())
        trio.run(transport.run)
    """)
    with trio.fail_after(PATIENCE):
        process = await trio.lowlevel.open_process([sys.executable, "-c", gateway], stdout=-1)
        frame = await process.stdout.receive_some(1000)
        pids = [int(pid) for pid in frame.strip().strip(b"[]").split(b",")]
        assert all(is_alive(pid) for pid in pids)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await process.stdout.aclose()
        await until_dead(*pids)


async def test_a_guardian_that_was_killed_is_replaced_and_knows_all_groups(guardian):
    await guardian.ready()
    child = await trio.lowlevel.open_process(["sleep", "600"], start_new_session=True)
    guardian.watch(child.pid)
    pid = int(re.search(r"pid (\d+)", repr(guardian))[1])
    os.kill(pid, signal.SIGKILL)
    await until_dead(pid)
    with trio.fail_after(PATIENCE):
        guardian.watch(99999999)
        guardian.release(99999999)
        await guardian.ready()
        await guardian.aclose()
        assert await child.wait() == -signal.SIGTERM
