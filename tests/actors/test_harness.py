from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend


async def test_a_whole_gateway_serves_both_kinds_of_endpoint_in_memory(autojump_clock):
    async with open_gateway(Backend("alpha"), Backend("beta", kind="http")) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__echo", "beta__echo"]
        assert await client.tool("alpha__echo", text="hi") == "alpha: hi"
        other = await gateway.connect("beta")
        assert other.server["serverInfo"]["name"] == "beta"
        assert await other.tool("echo") == "beta: echo"
        assert await client.delete() == 200
