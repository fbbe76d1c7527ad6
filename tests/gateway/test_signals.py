"""What signals do to a process, whatever its loop does."""

from __future__ import annotations

import os
import signal
import time

import pytest
import trio

from gateway.lifecycle import signals


async def test_a_second_one_ends_the_process_also_while_something_keeps_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[str] = []
    ended: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "_exit", ended.append)
    async with trio.open_nursery() as nursery:
        with signals(stopped.append) as listen:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert (stopped, ended) == ([], []), "told twice is once, and the loop has not run"
            later = time.monotonic() + 2
            monkeypatch.setattr(time, "monotonic", lambda: later)
            signal.raise_signal(signal.SIGTERM)
            assert ended == [1]
            monkeypatch.undo()
            listen(nursery)
            with trio.fail_after(30):
                while not stopped:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert stopped == ["SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) is before


async def test_what_does_not_end_the_process_is_done_and_nothing_else() -> None:
    stopped: list[str] = []
    done: list[str] = []
    others = {signal.SIGHUP: lambda: done.append("reload"), signal.SIGUSR2: lambda: done.append("roll")}
    async with trio.open_nursery() as nursery:
        with signals(stopped.append, others) as listen:
            listen(nursery)
            for number in (signal.SIGUSR2, signal.SIGHUP, signal.SIGUSR2):
                signal.raise_signal(number)
                with trio.fail_after(30):
                    before = len(done)
                    while len(done) == before:
                        await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert (done, stopped) == (["roll", "reload", "roll"], [])
