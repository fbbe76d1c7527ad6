"""How much there is to scrape: it follows from what is configured, never from how many clients there are."""

from collections import Counter

import pytest

from gateway.observability.bounds import SERIES_PER_HISTOGRAM
from gateway.observability.exposition import write
from gateway.observability.metrics import Metrics
from tests.support.harness import Gateway, RecordingTelemetry, open_gateway
from tests.support.mcp_backend import Backend

SERVERS, TOOLS = 5, 200
SERVER_OPERATION, CLIENT_OPERATION = "mcp_server_operation_duration_seconds", "mcp_client_operation_duration_seconds"


def measured(telemetry: RecordingTelemetry, servers: frozenset[str]) -> Metrics:
    """The same, as it is counted in a real process."""
    metrics = Metrics()
    metrics.know(servers)
    for (name, labels), amount in telemetry.counts.items():
        metrics.count(name, labels, amount)
    for (name, labels), value in telemetry.gauges.items():
        metrics.gauge(name, value, labels)
    for name, seconds, labelled in telemetry.observed:
        metrics.observe(name, seconds, tuple(labelled.values()))
    return metrics


def page_of(gateway: Gateway) -> tuple[Metrics, str]:
    metrics = measured(gateway.telemetry, frozenset(gateway.backends))
    return metrics, write(metrics.instruments, metrics.numbers(), metrics.examples(), {})[0].decode()


async def test_a_thousand_tools_are_as_many_series_and_no_call_adds_one(autojump_clock):
    names = [f"tool{n}" for n in range(TOOLS)]
    servers = [Backend(f"server{n}", tools=names) for n in range(SERVERS)]
    async with open_gateway(*servers) as gateway:
        client = await gateway.connect()
        exposed = [name for name in await client.names() if "__tool" in name]
        assert len(exposed) == SERVERS * TOOLS
        for name in exposed:
            await client.tool(name)
        metrics, _ = page_of(gateway)
        calls = [labels for labels in metrics.numbers()[SERVER_OPERATION] if labels[0] == "tools/call"]
        assert len(calls) == SERVERS * TOOLS
        of_server = Counter(labels[-1] for labels in metrics.numbers()[CLIENT_OPERATION] if labels[0] == "tools/call")
        assert of_server == dict.fromkeys(gateway.backends, TOOLS)
        for name in exposed[:10]:
            await client.tool(name)
            await client.begin("tools/call", {"name": f"{name}-invented"}).error()
        again, _ = page_of(gateway)
        both = SERVER_OPERATION, CLIENT_OPERATION
        more = [len(again.numbers()[name]) - len(metrics.numbers()[name]) for name in both]
        assert max(more) <= 3, "invented names are one more tool, with one more error"
        assert max(len(series) for series in again.numbers().values()) < SERIES_PER_HISTOGRAM


@pytest.mark.parametrize("sessions", [500, pytest.param(10_000, marks=pytest.mark.chaos)])
async def test_ten_thousand_sessions_are_not_one_series_more_than_ten(autojump_clock, sessions):
    async with open_gateway(Backend("alpha"), sessions_anonymous=sessions + 1) as gateway:
        ids, few = [], ""
        for number in range(sessions):
            client = gateway.client("")
            offer = {
                "protocolVersion": client.version,
                "capabilities": {},
                "clientInfo": {"name": f"c{number}", "version": "1"},
            }
            pending = client.begin("initialize", offer)
            await pending.result()
            client.session = pending.headers["mcp-session-id"]
            ids.append(client.session)
            if number in (0, sessions - 1):
                await client.notify("notifications/initialized")
                await client.names()
                await client.delete()
            if number == 9:
                _, few = page_of(gateway)
        _, page = page_of(gateway)
        assert len(page.splitlines()) == len(few.splitlines())
        assert not [id for id in ids if id in page]
