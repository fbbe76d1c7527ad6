"""How tests call a store, and a log that they can read."""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.ports import Failed, Refused, Replay
from tests.support.patience import PATIENCE


class Lines:
    """A Log that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def debug(self, event: str, **values: Any) -> None:
        self.events.append((event, values))

    info = warning = error = debug


class Letters:
    """A listener that keeps its mail."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def on_mail(self, letters: Sequence[bytes]) -> None:
        self.all += letters

    def on_renamed(self, former: str, now: str) -> None:
        pass

    def on_loss(self) -> None:
        pass

    def on_certain(self) -> None:
        pass

    def on_down(self, incarnation: str) -> None:
        pass


async def ask(method: Callable[..., None], *args: Any, **options: Any) -> Any:
    """The outcome of a call of the store port."""
    answered = trio.Event()
    outcomes: list[Any] = []

    def done(outcome: Any) -> None:
        outcomes.append(outcome)
        answered.set()

    method(*args, done, **options)
    with trio.fail_after(PATIENCE):
        await answered.wait()
    assert len(outcomes) == 1
    return outcomes[0]


def refused(outcome: Any) -> Refused:
    """Why the store did not do it; fails if it did."""
    assert isinstance(outcome, Failed), outcome
    return outcome.reason


class Outcomes:
    """What became of many calls."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = trio.Event()

    def __call__(self, outcome: Any) -> None:
        self.all.append(outcome)
        self._changed.set()

    async def wait(self, count: int) -> list[Any]:
        with trio.fail_after(PATIENCE):
            while len(self.all) < count:
                self._changed = trio.Event()
                await self._changed.wait()
        return self.all


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what a thread or Redis does."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


async def data_of(store: Any, key: str) -> list[bytes]:
    """The events of the stream p1. A store that is away is waited for: on a loaded machine a sentinel takes a new
    primary for dead, too, for a moment."""
    with trio.fail_after(PATIENCE):
        replay = await store.replay(key, "p1", 0, 0, 10_000)
        while isinstance(replay, Failed) and replay.reason is Refused.AWAY:
            await trio.sleep(0.1)
            replay = await store.replay(key, "p1", 0, 0, 10_000)
    assert isinstance(replay, Replay), replay
    return [entry.data for entry in replay.entries]
