"""Sessions and upstream connections to begin with."""

import pytest

from tests.protocol.machines.driving import NEWEST, LinkDriver, SessionDriver


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SessionDriver:
    """A session in operation, of the newest revision or of the one given as parameter."""
    return SessionDriver(getattr(request, "param", NEWEST)).initialize()


@pytest.fixture
def pipe() -> LinkDriver:
    """An upstream connection that is ready, over a transport that does not relate messages to requests (stdio)."""
    upstream = LinkDriver(related=False)
    upstream.connect()
    return upstream


@pytest.fixture
def http() -> LinkDriver:
    """An upstream connection that is ready, over a transport that does (HTTP)."""
    upstream = LinkDriver(related=True)
    upstream.connect()
    return upstream
