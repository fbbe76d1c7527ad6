"""What the backend side measures: names, labels and values."""

import pytest
import trio

from actors.cluster.letters import BODIES, UNKNOWN
from actors.ports import Refused
from actors.protocol import errors
from actors.protocol.instruments import INSTRUMENTS
from actors.protocol.methods import METHODS
from actors.protocol.trace_context import trace_id
from actors.upstreams.backends import STATES
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

OPERATION = "mcp_client_operation_duration_seconds"


def upstreams(gateway: Gateway, backend: str) -> dict[str, float]:
    """How many connections are in which state."""
    gauges = gateway.telemetry.gauges.items()
    return {
        labels[1]: n for (name, labels), n in gauges if name == "stagedoor_backend_links" and labels[0] == backend and n
    }


async def test_each_call_to_a_backend_is_observed_with_method_tool_error_transport_revision_and_server(autojump_clock):
    for kind in ("stdio", "http", "inproc"):
        alpha = Backend("alpha", tools=("echo", "work"), held={"work"}, kind=kind, version="2025-06-18")
        async with open_gateway(alpha) as gateway:
            client = await gateway.connect()
            await client.names()
            call = client.begin("tools/call", {"name": "alpha__work"})
            request = await alpha.next()
            await trio.sleep(2)
            request.error(-32001, "no")
            await call.error()
            await client.tool("alpha__echo")
            common = {"network_transport": kind, "mcp_protocol_version": "2025-06-18", "server": "alpha"}
            seen = gateway.telemetry.observations(OPERATION, mcp_method_name="tools/call", **common)
            assert [(o["gen_ai_tool_name"], o["error_type"]) for o in seen] == [("work", "-32001"), ("echo", "")]
            [seconds] = [
                s for n, s, o in gateway.telemetry.observed if n == OPERATION and o["gen_ai_tool_name"] == "work"
            ]
            assert 2 <= seconds < 2.1
            assert gateway.telemetry.observations(OPERATION, mcp_method_name="tools/list", **common)


async def test_a_method_that_no_revision_has_is_no_label(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["made/up"] = lambda r: {}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("made/up")
        assert all(
            o["mcp_method_name"] != "made/up" for _, _, o in gateway.telemetry.observed if "mcp_method_name" in o
        )


async def test_connections_are_counted_by_backend_and_state(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, link_idle=50.0) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        assert upstreams(gateway, "alpha") == {"ready": 2.0}
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        alpha.down = True
        alpha.upstreams[1].die()
        alpha.upstreams[0].die()
        await gateway.settle()
        assert upstreams(gateway, "alpha") == {"idle": 1.0, "waiting": 1.0}
        alpha.down = False
        alpha.silent = True
        await trio.sleep(20)
        assert upstreams(gateway, "alpha") == {"idle": 1.0, "connecting": 1.0}
        await client.delete()
        await trio.sleep(100)
        assert upstreams(gateway, "alpha") == {}


async def test_failures_are_counted_by_backend_and_reason(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.upstream.die()
        await gateway.settle()
        assert gateway.telemetry.total("stagedoor_backend_failures_total", "alpha", "exited") == 1
        alpha.down = True
        await client.begin("tools/call", {"name": "echo"}).error()
        assert gateway.telemetry.total("stagedoor_backend_failures_total", "alpha", "spawn_failed") == 1


async def test_a_close_on_purpose_is_no_failure(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.delete()
        await gateway.settle()
        assert gateway.telemetry.total("stagedoor_backend_failures_total") == 0


async def test_processes_are_counted_and_connections_over_http_are_not(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta", kind="http")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect("alpha")
        await gateway.connect("beta")
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 1.0
        assert ("stagedoor_child_processes", ("beta",)) not in gateway.telemetry.gauges
        await client.delete()
        await gateway.settle()
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 0.0


async def test_operators_see_the_last_error_and_how_often_it_connected(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.upstream.die("segmentation fault")
        await gateway.settle()
        status = gateway.actors.backends.status["alpha"]
        assert (status.connections, status.last_error) == (1, "segmentation fault")
        await client.tool("echo")
        assert (status.connections, status.last_error) == (2, "")


CODES = {"", "tool_error", "other", *(str(code) for code in errors.CODES)}


def labels(gateway: Gateway, name: str) -> set[str]:
    """The values of this label over all series."""
    return {o[name] for _, _, o in gateway.telemetry.observed if name in o}


@pytest.mark.parametrize("endpoint", ["", "alpha"])
@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize("made", [Backend, ModernBackend])
async def test_what_clients_and_servers_invent_is_no_label(autojump_clock, endpoint, sessions, made):
    """Names of tools, prompts and resources, methods, codes of errors; real tools keep their labels."""
    prefix = "" if endpoint else "alpha__"
    alpha, gone = made("alpha", mute={"tools/call"}), made("gone")
    gone.down = True
    async with open_gateway(alpha, gone) as gateway:
        client = (
            await gateway.connect(endpoint)
            if sessions
            else ModernClient(gateway.actors.door, gateway.nursery, endpoint)
        )

        async def refused(method: str, code: int, **params: str) -> None:
            before = len(alpha.asked_for(method))
            pending = client.begin(method, params)
            await gateway.settle()
            for request in alpha.asked_for(method)[before:]:
                request.error(code, "no idea")
            await pending.response()

        for number in range(20):
            await refused("tools/call", 5000 + number, name=f"{prefix}invented{number}")
            await refused("prompts/get", 0, name=f"{prefix}invented{number}")
            await refused("resources/read", 0, uri=f"invented:{number}")
            await refused(f"invented/{number}", 0, name="x")
            await refused("tools/call", 0, name=f"gone__invented{number}")
        await client.call("tools/list")
        await refused("tools/call", 7000, name=f"{prefix}later")
        await refused("tools/call", -32603, name=f"{prefix}echo")
        assert labels(gateway, "gen_ai_tool_name") - {"other"} == {"", "echo", f"{prefix}echo"}
        assert labels(gateway, "mcp_method_name") <= {"", *METHODS}
        assert labels(gateway, "error_type") <= CODES


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
DURATIONS = ["mcp_client_operation_duration_seconds", "mcp_server_operation_duration_seconds"]


@pytest.mark.parametrize("endpoint", ["", "alpha"])
@pytest.mark.parametrize("sessions", [True, False])
async def test_a_call_of_a_trace_is_measured_with_its_id_on_both_sides(autojump_clock, endpoint, sessions):
    async with open_gateway(Backend("alpha")) as gateway:
        client = (
            await gateway.connect(endpoint)
            if sessions
            else ModernClient(gateway.actors.door, gateway.nursery, endpoint)
        )
        meta = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        params = {"name": "echo" if endpoint else "alpha__echo"}
        more = {"_meta": meta} if sessions else {}
        await client.begin("tools/call", {**params, **more}, **({} if sessions else {"meta": meta})).result()
        assert sorted(gateway.telemetry.traces) == [(name, TRACE) for name in DURATIONS]


@pytest.mark.parametrize(
    ("parent", "found"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes", TRACE),
        (f"00-{TRACE}-00f067aa0ba902b7-00", ""),
        (f"00-{TRACE}-00f067aa0ba902b7-01-more", ""),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", ""),
        ("", ""),
        ("x" * 1_000_000, ""),
    ],
)
def test_of_a_traceparent_only_one_that_is_recorded_counts(parent, found):
    assert trace_id(parent) == found


@pytest.mark.parametrize("meta", [5, None, [], {"traceparent": 5}, {"traceparent": {}}, {}])
async def test_a_malformed_trace_costs_a_call_nothing(autojump_clock, meta):
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect("alpha")
        await client.begin("tools/call", {"name": "echo", "_meta": meta}).response()
        assert gateway.telemetry.traces == []


def test_the_values_that_are_declared_are_those_that_the_code_has():
    values = {name: one.values for name, one in INSTRUMENTS.items()}
    assert values["stagedoor_store_errors_total"]["reason"] == tuple(reason.value for reason in Refused)
    for name in ("stagedoor_letters_sent_total", "stagedoor_letters_received_total"):
        assert set(values[name]["kind"]) == {*BODIES, UNKNOWN}
    assert set(values["stagedoor_backend_links"]["state"]) == set(STATES.values())
    assert values["stagedoor_messages_rejected_total"]["reason"] == tuple(errors.KINDS)


async def test_whatever_the_door_refuses_is_counted_by_its_kind(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect()
        await client.begin("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}}).error()
        await client.post(b"{").end()
        await client.delete()
        await client.begin("tools/list").error()
        refused = ("already_initialized", "parse", "session_not_found")
        counts = {kind: gateway.telemetry.total("stagedoor_messages_rejected_total", kind) for kind in refused}
        assert counts == dict.fromkeys(refused, 1)
