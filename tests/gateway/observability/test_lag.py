import trio
from trio.testing import MockClock

from gateway.observability import Lag, Metrics, report_lag


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """A loop made by hand: rounds of work and pauses of waiting."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lag = Lag(self.clock)

    def round(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.lag.after_io_wait(0)
            self.clock.now += seconds
            self.lag.before_io_wait(0)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


def test_a_loop_at_rest_or_with_short_rounds_is_not_overloaded() -> None:
    loop = Loop()
    assert not loop.lag.overloaded()
    loop.round(0.25, times=100)
    assert not loop.lag.overloaded()


def test_slow_rounds_for_two_seconds_on_end_are_an_overload() -> None:
    loop = Loop()
    loop.round(0.4, times=4)
    assert not loop.lag.overloaded()
    loop.round(0.4)
    assert loop.lag.overloaded()


def test_short_rounds_between_slow_ones_do_not_hide_an_overload() -> None:
    loop = Loop()
    for _ in range(6):
        loop.round(0.4)
        loop.round(0.001)
    assert loop.lag.overloaded()


def test_it_is_over_when_no_round_was_slow_for_half_a_second() -> None:
    loop = Loop()
    loop.round(0.4, times=10)
    loop.wait(0.5)
    assert loop.lag.overloaded()
    loop.wait(0.01)
    assert not loop.lag.overloaded()
    loop.round(0.4, times=4)
    assert not loop.lag.overloaded(), "a stretch begins anew"


def test_slow_rounds_far_apart_are_no_overload() -> None:
    loop = Loop()
    for _ in range(20):
        loop.round(0.4)
        loop.wait(0.6)
    assert not loop.lag.overloaded()


def test_one_long_stop_of_the_whole_process_is_no_overload() -> None:
    loop = Loop()
    loop.round(30.0)
    assert not loop.lag.overloaded()


def test_the_worst_lag_is_taken_once() -> None:
    loop = Loop()
    loop.round(0.1)
    loop.round(0.3)
    loop.round(0.2)
    assert round(loop.lag.take_worst(), 6) == 0.3
    assert loop.lag.take_worst() == 0.0


def test_trio_feeds_it_the_length_of_its_rounds() -> None:
    clock = Clock()
    lag = Lag(clock)

    async def busy() -> None:
        for _ in range(4):
            clock.now += 0.3
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            nursery.start_soon(busy)

    trio.run(main, instruments=[lag])
    assert round(lag.take_worst(), 6) == 0.6, "two tasks of 0.3 s each are ready in every round"
    assert lag.overloaded()


async def test_the_worst_of_each_interval_is_reported(autojump_clock: MockClock) -> None:
    clock, metrics = Clock(), Metrics()
    lag = Lag(clock)

    async def work() -> None:
        for seconds in (0.1, 0.3):
            lag.after_io_wait(0)
            clock.now += seconds
            lag.before_io_wait(0)

    with trio.move_on_after(2.5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report_lag, lag, metrics, 1.0)
            nursery.start_soon(work)
    cell = metrics.numbers()["stagedoor_scheduler_lag_seconds"][()]
    assert isinstance(cell, list)
    assert (sum(cell[:-1]), round(cell[-1], 6)) == (2, 0.3)
