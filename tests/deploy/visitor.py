"""A client that stays: one session for all that a test does around it. It runs as a program of its own, since it may
have to live in another network than the test: `python -m tests.deploy.visitor URL`. Each line it reads is a thing to
do, and is answered by a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from gateway.client import Client, ClientError, open_client
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT

REVISION = "2025-11-25"
"""One with sessions, which are what replicas have to share."""


async def _tools(client: Client) -> list[str]:
    return [tool.name async for tool in client.list_tools()]


async def _call(client: Client) -> str:
    """One call, again and again while it is refused or fails: the text of its answer."""
    while True:
        try:
            return (await client.call_tool("demo__echo", {"text": "hello"})).text
        except ClientError as error:
            if error.executed is None:
                raise
            await trio.sleep(0.2)


async def _calls(client: Client) -> int:
    """Nine calls, each of which must work the first time."""
    for number in range(9):
        assert (await client.call_tool("demo__echo", {"text": str(number)})).text == str(number)
    return 9


async def _progress(client: Client) -> float:
    """The first word of a call that is far from its end: that comes only if nobody on the way waits for more."""
    heard = trio.Event()
    values = []

    def progress(value: float, *_: object) -> None:
        values.append(value)
        heard.set()

    async def count() -> None:
        await client.call_tool("demo__slow_count", {"to": 600, "pause": 1.0}, progress=progress)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await heard.wait()
        nursery.cancel_scope.cancel()
    return values[0]


DEEDS = {"tools": _tools, "call": _call, "calls": _calls, "progress": _progress}


async def _visit(url: str) -> None:
    async with open_client(url, version=REVISION) as client:
        print(json.dumps("here"), flush=True)
        while deed := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            with trio.fail_after(PATIENCE):
                print(json.dumps(await DEEDS[deed](client)), flush=True)


class Visitor:
    """The program, from the outside. `before` is what stands before its command."""

    def __init__(self, url: str, log: Path, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "tests.deploy.visitor", url]
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def __enter__(self) -> Visitor:
        assert self._answer() == "here"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def do(self, deed: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{deed}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the client ended: {self._log.read_text()}"
        return json.loads(line)


if __name__ == "__main__":
    trio.run(_visit, sys.argv[1])
