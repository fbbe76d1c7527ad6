"""What a limit of file descriptors is divided into."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.descriptors import (
    CONNECTIONS,
    OF_A_PROCESS,
    RESERVED,
    WANTED,
    budget,
)


@given(st.integers(16, 2**31), st.integers(1, 100_000))
def test_the_shares_leave_a_reserve_within_the_limit(limit: int, processes: int) -> None:
    got = budget(limit, processes)
    used = got.clients + got.servers + got.processes * OF_A_PROCESS
    assert used + min(RESERVED, limit // 4) <= limit + OF_A_PROCESS
    assert 1 <= got.clients <= CONNECTIONS
    assert 1 <= got.processes <= processes


def test_what_is_wanted_is_enough_for_everything() -> None:
    assert not budget(WANTED, 200).falls_short(200)


@pytest.mark.parametrize(("limit", "clients"), [(256, 96), (1024, 464), (4096, 2000)])
def test_few_descriptors_are_said_to_be_few(limit: int, clients: int) -> None:
    got = budget(limit, 200)
    assert got.clients == clients
    assert got.falls_short(200)
