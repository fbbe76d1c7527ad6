"""Attackers and hostile servers on all sides of a real gateway, and honest clients that notice nothing of it.

Everything follows from one seed, which a failure names. `FUZZ_SEED` chooses it, `FUZZ_SECONDS` how long it lasts; what
meets what at which moment is still the machine's choice.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import string
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.fuzz import answers
from tests.fuzz.corpus import recorded
from tests.fuzz.honest import BrokenAnswerError, Client, WrongAnswerError
from tests.fuzz.mutations import Mutator
from tests.fuzz.wire import Wire
from tests.support.processes import Gateway, Programs, accepts, free_port

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
LONG_SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
SEED = os.environ.get("FUZZ_SEED", "1")

SECRET = "s3cr3t-"
TOKENS = {"ann": f"{SECRET}token-of-ann", "bob": "token-of-bob", "mallory": "token-of-mallory"}
HONEST = {"legacy": ("legacy", True), "modern": ("modern", True), "piped": ("legacy", False)}
HOSTILE = {
    "bad-legacy": ("legacy", True),
    "bad-modern": ("modern", True),
    "bad-piped": ("legacy", False),
    "bad-piped-modern": ("modern", False),
}

ATTACKERS = 12  # connections at once that send what was mutated
VISITORS = 8  # clients at once that use the hostile servers as if nothing were
MEMORY = 400 << 20  # bytes that the gateway may grow by while it is attacked
DESCRIPTORS = 600  # and descriptors
LEFT_OVER = 150  # descriptors more than before, some time after it is over
TURN, TURNS = 2.5, 3  # seconds that a turn of the loop takes this often at most, on a slow machine under other load
PROBE_WITHIN = 30.0  # seconds for an answer of /livez
SETTLE = 60.0  # seconds after which what is left over is looked at
NO_SESSIONS = [("/mcp", "x"), ("/mcp/legacy", ""), ("/mcp/modern", "\x01"), ("/mcp", "z" * 5000)]
STRANGE_PATHS = ("/", "/mcp/no", "/mcp?x", "*", "/%")
SESSION = re.compile(rb"(?i)mcp-session-id: (\S+)\r\n")
GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, BrokenAnswerError)


class Session(NamedTuple):
    """One that Mallory has, and where."""

    path: str
    id: str


@dataclass
class Watch:
    """Looks for what belongs to Ann in what others read."""

    secrets: list[bytes] = field(default_factory=lambda: [SECRET.encode()])
    leaks: list[str] = field(default_factory=list)

    def of(self, who: str) -> Callable[[bytes], None]:
        tail = b""

        def look(data: bytes) -> None:
            nonlocal tail
            tail += data
            for secret in self.secrets:
                if secret in tail:
                    at = tail.index(secret)
                    self.leaks.append(f"{who} read {tail[max(0, at - 300) : at + 300]!r}")
            tail = tail[-100:]

        return look


def words(rng: random.Random, mark: str) -> Callable[[], str]:
    """Short texts, of any script; Ann's hold her secret."""
    letters = string.ascii_letters + 'äß漢🎭 "\\/<'

    def say() -> str:
        return mark + "".join(rng.choices(letters, k=rng.choice((1, 8, 8, 300)))) + "."

    return say


@dataclass
class Running:
    """The gateway under attack, and what was seen of it."""

    gateway: Gateway
    watch: Watch
    leaks: Path
    seed: str
    statistics: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    @property
    def endpoints(self) -> list[str]:
        return ["/mcp", *(f"/mcp/{name}" for name in (*HONEST, *HOSTILE))]

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.gateway.admin}/metrics", timeout=PROBE_WITHIN) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def size(self) -> tuple[int, int]:
        """Bytes of memory, and descriptors."""
        pid = self.gateway.program.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def start(programs: Programs, folder: Path, seed: str) -> Running:
    leaks = folder / "leaks"
    backends: dict[str, Any] = {}
    for servers, program, first in ((HONEST, "honest_server.py", ()), (HOSTILE, "hostile_server.py", (seed,))):
        for name, (era, http) in servers.items():
            command = [sys.executable, str(HERE / program), *first, era]
            environment = {"FUZZ_LEAKS": str(leaks)}
            if http:
                port = free_port()
                programs.start(name, [*command, str(port)], ready=accepts(port), env=environment)
                backends[name] = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
            else:
                backends[name] = {"command": command[0], "args": command[1:], "env": environment}
            if servers is HOSTILE:
                backends[name]["timeout"] = 3
    gateway = {
        "auth": {"tokens": TOKENS},
        "limits": {
            "listDeadline": 2,
            "linkConnect": 10,
            "requestsPerPrincipal": 64,
            "sessionsPerPrincipal": 100,
            "linkIdle": 15,  # here and below: so that what attackers leave behind goes
            "brokerIdle": 15,
            "parkTtl": 20,
        },
        "sessions": {"passivateAfter": 3},
    }
    config = {"mcpServers": backends, "gateway": gateway}
    return Running(programs.gateway(config), Watch(), leaks, seed)


# --- Who takes part


def honest_clients(running: Running, who: str) -> list[Client]:
    """Both eras, on the server's own route and the aggregate."""
    found = []
    look = running.watch.of(who) if who != "ann" else lambda _: None
    for number, server in enumerate(HONEST):
        for aggregate in (False, True):
            for modern in (False, True):
                rng = random.Random(f"{running.seed}/{who}/{number}/{aggregate}/{modern}")
                client = Client(
                    Wire(running.port, look),
                    TOKENS[who],
                    "/mcp" if aggregate else f"/mcp/{server}",
                    f"{server}__" if aggregate else "",
                    modern,
                    rng,
                    words(rng, SECRET if who == "ann" else ""),
                )
                if who == "ann":
                    client.on_session = lambda session: running.watch.secrets.append(session.encode())
                found.append(client)
    return found


async def be_honest(client: Client, until: float, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    await client.open()
    await client.use()
    task_status.started()
    while trio.current_time() < until:
        await client.use()
        await trio.sleep(client.rng.random() * 0.4)
    for _ in range(2):  # and when it is over
        await client.use()
    await client.end()


async def visit(running: Running, number: int, sessions: list[Session]) -> None:
    """A client that keeps the rules, mostly with servers that don't: whatever it gets. Attackers use its sessions."""
    rng = random.Random(f"{running.seed}/visitor/{number}")
    while True:
        server = rng.choice(list(HOSTILE if rng.random() < 0.5 else HONEST))
        modern, aggregate = rng.random() < 0.4, rng.random() < 0.3
        path, prefix = ("/mcp", f"{server}__") if aggregate else (f"/mcp/{server}", "")
        wire = Wire(running.port, running.watch.of("a visitor of hostile servers"))
        client = Client(wire, TOKENS["mallory"], path, prefix, modern, rng, words(rng, ""))
        for do in (client.open, *(client.use for _ in range(rng.randint(1, 12)))):
            running.statistics["visits"] += 1
            try:
                with trio.fail_after(rng.choice((0.1, 0.5, 0.5, 4))):
                    await do()
            except (*GONE, WrongAnswerError, KeyError, ValueError, TypeError, AttributeError, IndexError):
                running.statistics["visits that went wrong"] += 1
        if client.session is not None:
            sessions.append(Session(path, client.session))


async def attack(running: Running, number: int, sessions: list[Session]) -> None:
    """Sends what was mutated, whole, in part, or in pieces, and reads what comes, or does not."""
    rng = random.Random(f"{running.seed}/attacker/{number}")
    mutator, look = Mutator(rng, recorded()), running.watch.of("an attacker")
    while True:
        running.statistics["attacks"] += 1
        data = b""
        for _ in range(rng.choice((1, 1, 1, 1, 1, 30))):  # pipelined, sometimes
            path, session = rng.choice(sessions[-30:] if sessions and rng.random() < 0.8 else NO_SESSIONS)
            if rng.random() < 0.2:
                path = rng.choice(running.endpoints if rng.random() < 0.8 else STRANGE_PATHS)
            server = rng.choice([*HONEST, *HOSTILE])
            token = TOKENS["mallory"] if rng.random() < 0.95 else rng.choice(("", "x", "\x7f", "y" * 5000))
            data += mutator.request(path, f"{server}__" if path == "/mcp" else "", session, token, running.port)
        try:
            with trio.move_on_after(rng.choice((0.02, 0.05, 0.05, 0.05, 0.2, 1.0))):
                async with await trio.open_tcp_stream("127.0.0.1", running.port) as stream:
                    if rng.random() < 0.1:
                        await stream.send_all(data[: int(len(data) * rng.random())])
                        if rng.random() < 0.5:
                            await stream.send_eof()
                    else:
                        await stream.send_all(data)
                    while rng.random() < 0.97 and (said := await stream.receive_some(65536)):
                        look(said)
                        sessions += (Session(path, found.decode()) for found in SESSION.findall(said))
                    if rng.random() < 0.3:
                        stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER: a reset
        except GONE:
            running.statistics["attacks cut off"] += 1


async def probe(running: Running, memory: int, descriptors: int) -> None:
    """The gateway answers who looks after it, and stays within its bounds."""

    def look() -> None:
        try:
            urllib.request.urlopen(f"{running.gateway.admin}/livez", timeout=PROBE_WITHIN).close()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"/livez says {error.code}") from None

    while True:
        await trio.to_thread.run_sync(look)
        now, open_now = running.size()
        running.most["megabytes"] = max(running.most["megabytes"], (now - memory) >> 20)
        running.most["descriptors"] = max(running.most["descriptors"], open_now - descriptors)
        assert now - memory < MEMORY, f"the gateway grew by {(now - memory) >> 20} MiB"
        assert open_now - descriptors < DESCRIPTORS, f"the gateway has {open_now - descriptors} descriptors more"
        await trio.sleep(0.5)


async def end_sessions(running: Running, sessions: list[Session]) -> None:
    """What was opened is closed: what is left over then is nobody's."""
    wire = Wire(running.port, running.watch.of("an attacker"))
    headers = {"authorization": f"Bearer {TOKENS['mallory']}"}
    for path, session in dict.fromkeys(sessions):
        async with wire.request("DELETE", path, {**headers, "mcp-session-id": session}) as response:
            running.statistics["sessions ended"] += response.status < 300


# --- The test


SERVER_SAID = '"event": "backend_stderr"'
"""In a line of the log: what follows are a server's own words."""


async def play(running: Running, seconds: float) -> None:
    clients = [*honest_clients(running, "ann"), *honest_clients(running, "bob")]
    sessions: list[Session] = []
    async with trio.open_nursery() as nursery:
        until = trio.current_time() + seconds
        async with trio.open_nursery() as honest:
            for client in clients:
                await honest.start(be_honest, client, until)
            memory, descriptors = await trio.to_thread.run_sync(running.size)
            nursery.start_soon(probe, running, memory, descriptors)
            for number in range(ATTACKERS):
                nursery.start_soon(attack, running, number, sessions)
            for number in range(VISITORS):
                nursery.start_soon(visit, running, number, sessions)
            await trio.sleep_until(until)
        nursery.cancel_scope.cancel()
    await end_sessions(running, sessions)
    for client in clients:
        running.statistics["checked"] += client.checked
        running.statistics["refused for now"] += client.refused
        running.statistics.update(client.kinds)
    with trio.move_on_after(SETTLE):
        while running.size()[1] - descriptors > LEFT_OVER:
            await trio.sleep(0.5)
    running.most["descriptors left over"] = running.size()[1] - descriptors


def judge(running: Running) -> list[str]:
    """What is wrong with a gateway that was attacked, or came to an end."""
    metrics = running.metrics()
    wrong = [f"{name}: {count:g}" for name, count in metrics.items() if "crashes_total" in name and count]
    name = "stagedoor_scheduler_lag_seconds"
    slow = (
        metrics[f"{name}_count"] - metrics[f'{name}_bucket{{le="{TURN}"}}']
        if f'{name}_bucket{{le="{TURN}"}}' in metrics
        else 0
    )
    if slow:
        wrong.append(f"{slow:g} turns of the loop took over {TURN:g} s")
    if running.most["descriptors left over"] > LEFT_OVER:
        wrong.append(f"{running.most['descriptors left over']} descriptors are left over")
    status = running.gateway.program.stop(signal.SIGTERM)
    if status:
        wrong.append(f"it ended with {status}")
    log = running.gateway.program.output()
    own = "\n".join(line for line in log.splitlines() if SERVER_SAID not in line)
    wrong += [
        f"its log has {word!r}: …{text[max(0, text.index(word) - 500) :][:4000]}"
        for word, text in ((SECRET, log), ("Traceback", own))
        if word in text
    ]
    wrong += running.watch.leaks[:3]
    if running.leaks.exists():
        wrong.append(running.leaks.read_text()[:2000])
    return wrong


def fuzz(programs: Programs, folder: Path, seed: str, seconds: float) -> None:
    running = start(programs, folder, seed)
    began = time.monotonic()
    try:
        trio.run(play, running, seconds)
        wrong = judge(running)
        assert not wrong, "\n".join(wrong)
    except BaseException as error:
        error.add_note(f"seed {seed}, after {time.monotonic() - began:.0f} s; {running.gateway.program.story()}")
        raise
    finally:
        print(f"seed {seed}: {json.dumps({**running.statistics, **running.most})}")
    assert running.statistics["checked"] > 0
    assert {"echo", "steps", "elicit", "tools", "read", "prompt"} <= running.statistics.keys()


def test_honest_clients_notice_nothing_of_attackers_and_hostile_servers(programs: Programs, tmp_path: Path) -> None:
    fuzz(programs, tmp_path, SEED, SECONDS)


@pytest.mark.chaos
def test_honest_clients_notice_nothing_for_a_long_time(programs: Programs, tmp_path: Path) -> None:
    fuzz(programs, tmp_path, os.environ.get("FUZZ_SEED", str(random.randrange(10**9))), LONG_SECONDS)


def test_an_answer_that_is_not_the_right_one_is_noticed() -> None:
    rng = random.Random(0)
    client = Client(Wire(0, lambda _: None), "", "/mcp", "", False, rng, words(rng, ""))
    with pytest.raises(WrongAnswerError):
        client.expect(answers.echo("a"), answers.echo("b"))


def test_a_secret_is_noticed_wherever_the_pieces_of_what_is_read_begin() -> None:
    watch = Watch()
    look = watch.of("somebody")
    for byte in b"all is well, s3cr3t-x":
        look(bytes([byte]))
    assert len(watch.leaks) >= 1


def test_mutations_follow_from_their_seed() -> None:
    def made(seed: str) -> list[bytes]:
        mutator = Mutator(random.Random(seed), recorded())
        return [mutator.request("/mcp", "far__", "session", "token", 80) for _ in range(300)]

    assert made("1") == made("1")
    assert made("1") != made("2")
