"""What a client can be opened of, and what it is told where there is nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.ports import Headers
from gateway.client import ConnectionLostError, RequestFailedError, VersionError, opening
from gateway.client.memory import MemoryTransport
from stagedoor import open_client
from tests.gateway.client import shop
from tests.gateway.client.conftest import CONFIG, by_sse
from tests.support.patience import PATIENCE
from tests.support.processes import STAGEDOOR, Programs
from tests.support.schemas import check


@pytest.mark.e2e
async def test_a_unix_domain_socket_in_both_ways_over_all_that_is_served_there(programs: Programs) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket must be short
        address = f"unix:{Path(folder) / 'shop'}"
        programs.gateway(CONFIG, "--listen", address)
        async with open_client(address) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        async with open_client(address, "2025-11-25") as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        async with open_client(f"ws+{address}") as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        ways = {kind: {"url": address, "type": kind} for kind in ("http", "ws", "sse")}
        second = programs.gateway({"mcpServers": ways})
        for kind in ways:  # what the one serves there, the other one finds there
            async with open_client(second.endpoint(kind)) as client:
                added = await client.call_tool("shop__add", {"a": 1, "b": 2})
                assert added.structured_content == {"result": 3}, kind


class Recording:
    """A transport of a user's own: it keeps what is sent."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._inner = MemoryTransport(shop.server, nursery)
        self.sent: list[dict[str, Any]] = []
        self.closed = False

    session_id = "mine"
    last_event_id = None

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        self.sent.append(json.loads(message))
        await self._inner.send(message, headers)

    async def receive(self) -> Any:
        return await self._inner.receive()

    async def close(self) -> None:
        self.closed = True
        await self._inner.close()

    async def resume_from(self, event_id: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_transport_of_one_s_own_and_what_is_sent_fits_the_schema(version: str) -> None:
    async with trio.open_nursery() as nursery:
        transport = Recording(nursery)
        handlers: Any = {
            "sampling": lambda params: "a hat",
            "elicitation": lambda params: "cancel",
            "roots": ["file:///a"],
        }
        async with open_client(transport, version, **handlers) as client:
            assert client.transport.session_id == "mine"
            await client.list_tools()
            await client.list_resources()
            await client.list_templates()
            await client.list_prompts()
            await client.set_level("error")
            await client.call_tool("steps", {"count": 1}, progress=lambda *step: None)
            await client.call_tool("sampled")
            await client.call_tool("sized")
            await client.call_tool("folders")
            await client.read_resource("shop://price")
            await client.get_prompt("greet", {"name": "Ada"})
            await client.complete("greet", "name", "A")
            async with client.subscribe("shop://price"):
                pass
            await client.ping()
            with trio.move_on_after(0.05):
                await client.call_tool("slow")
        nursery.cancel_scope.cancel()
    assert transport.closed
    assert {"notifications/cancelled", "resources/unsubscribe"} <= {message.get("method") for message in transport.sent}
    for message in transport.sent:
        kind = "JSONRPCRequest" if "id" in message and "method" in message else "JSONRPCNotification"
        check(version, kind if "method" in message else "JSONRPCResponse", message)
        if "method" in message:
            union = "ClientRequest" if "id" in message else "ClientNotification"
            check(version, union, message)


async def test_a_connection_that_ends_ends_every_wait() -> None:
    async with trio.open_nursery() as nursery:
        transport = Recording(nursery)
        async with open_client(transport, "2025-11-25") as client, trio.open_nursery() as calls:

            async def call() -> None:
                with pytest.raises(ConnectionLostError):
                    await client.call_tool("slow")
                with pytest.raises(ConnectionLostError):
                    await anext(updates)

            updates = client.subscribe("shop://price")
            await updates.__aenter__()
            calls.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await transport.close()
        nursery.cancel_scope.cancel()


async def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(TypeError, match="no URL, no command"):
        async with open_client(42):  # type: ignore[arg-type]
            pass
    with pytest.raises(ValueError, match="http://"):
        async with open_client("ftp://example.com"):
            pass
    with pytest.raises(RequestFailedError) as failed:
        async with open_client("http://127.0.0.1:1/mcp"):
            pass
    assert (failed.value.executed, failed.value.code) == ("no", None)
    for target, named in (("wss://127.0.0.1:1/ws", "wss://127.0.0.1:1: "), ("ws+unix:/no/such", "unix:/no/such: ")):
        with pytest.raises(RequestFailedError, match=named) as refused:
            async with open_client(target):
                pass
        assert refused.value.executed == "no"


async def test_a_revision_that_a_server_does_not_speak() -> None:
    with pytest.raises(VersionError):
        async with open_client(shop.server, "1999-01-01"):
            pass
    with pytest.raises(VersionError, match="does not speak 2026-07-28"):
        async with open_client(Old(), "2026-07-28"):
            pass


class Old:
    """A server of the handshake era."""

    session_id = None
    last_event_id = None

    def __init__(self) -> None:
        self._sender, self._inbox = trio.open_memory_channel[bytes](9)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        error = {"code": -32601, "message": "Method not found"}
        self._sender.send_nowait(
            json.dumps({"jsonrpc": "2.0", "id": json.loads(message)["id"], "error": error}).encode()
        )

    async def receive(self) -> bytes:
        return await self._inbox.receive()

    async def close(self) -> None:
        self._sender.close()

    async def resume_from(self, event_id: str) -> None:
        raise NotImplementedError


def test_what_is_not_used_is_not_imported() -> None:
    program = "import gateway.client, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"httptools", "ssl", "trio_websocket", "pydantic", "asyncio"} & (set(done.stdout.split()) - trio_s())


def trio_s() -> set[str]:
    """What trio imports itself."""
    done = subprocess.run(
        [sys.executable, "-c", "import trio, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.e2e
def test_the_command_line_speaks_with_it(programs: Programs) -> None:
    """Over a transport that the gateway's URL does not name."""
    url = by_sse(programs)
    command = [STAGEDOOR, "call", "add", "--arg", "a=1", "--arg", "b=2", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
    command = [STAGEDOOR, "ls", "servers", "--url", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    (entry,) = json.loads(done.stdout)
    assert (entry["status"], entry["server"], entry["era"], entry["counts"]["prompts"]) == (
        "healthy",
        "shop",
        "legacy",
        1,
    )


async def test_whose_client_speaks_the_newest_revision_with_a_server_in_this_process_is_said() -> None:
    with pytest.raises(VersionError, match=r"stagedoor\.open_client speaks 2026-07-28"):
        async with opening.open_client(shop.server, "2026-07-28"):
            pass
    async with open_client(shop.server, "2026-07-28") as opened:
        assert opened.protocol_version == "2026-07-28"
