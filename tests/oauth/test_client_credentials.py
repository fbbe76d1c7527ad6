"""Servers at which the gateway is authorized as itself: a 401 brings a token, and the same call goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives import serialization

from gateway.oauth import sources
from tests.support.authorized import open_authorized
from tests.support.oauth import KEY, OAuthWorld, open_oauth_world

PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()

pytestmark = pytest.mark.parametrize("era", ["legacy", "modern"])


def configured(world: OAuthWorld, **auth: Any) -> dict[str, Any]:
    given = {"mode": "client_credentials", "clientId": "gw", "clientSecret": "gw secret"} | auth
    return {"mcpServers": {"a": {"url": world.url, "auth": given}}, "gateway": {"auth": {"tokens": {"ann": "T" * 32}}}}


async def call(gateway: Any, tool: str, era: str, path: str = "/mcp") -> Any:
    """The result of one call by a client of either era."""
    if era == "modern":
        return await gateway.modern(path, token="T" * 32).start_call(tool).complete()
    client = gateway.legacy(path, token="T" * 32)
    await client.connect()
    return await client.call(tool)


def user_of(result: Any) -> str:
    found: str = json.loads(result["content"][0]["text"])["user"]
    return found


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_a_401_brings_a_token_and_the_call_goes_on(kind: str, era: str, tmp_path: Path) -> None:
    async with open_oauth_world(eras=kind) as world, open_authorized(configured(world), tmp_path) as gateway:
        assert user_of(await call(gateway, "a__whoami", era)) == "itself"
        assert user_of(await call(gateway, "a__whoami", era)) == "itself"
        assert world.counts["/token"] == 1
        form = next(a for a in world.asked if a.path == "/token").form
        assert form == {"grant_type": "client_credentials", "scope": "mcp", "resource": world.url}
        [line] = gateway.trail.lines
        assert (line["event"], line["server"], line["iss"]) == ("token.fetch", "a", world.origin)
        assert "canary" not in json.dumps(line)


@pytest.mark.parametrize("audience", ["issuer", "token_endpoint"])
async def test_a_client_may_sign_who_it_is_for_the_issuer_or_its_token_endpoint(
    audience: str, era: str, tmp_path: Path
) -> None:
    async with open_oauth_world() as world:
        world.public_keys["gw"] = KEY.public_key()
        world.wants_assertions_for = f"{world.origin}/token" if audience == "token_endpoint" else ""
        key = {"clientSecret": None, "privateKey": PEM, "assertionAudience": audience}
        async with open_authorized(configured(world, **key), tmp_path) as gateway:
            assert user_of(await call(gateway, "a__whoami", era)) == "itself"
        [asked] = [asked for asked in world.asked if asked.path == "/token"]
        assert "authorization" not in asked.headers
        assert "PRIVATE KEY" not in repr(world.asked)


async def test_a_token_that_is_refused_is_replaced_once_and_for_all_calls(era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        await call(gateway, "a__whoami", era)
        gateway.pass_time(60)
        world.forget_tokens()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(call, gateway, "a__whoami", era)
        assert world.counts["/token"] == 2


async def test_a_server_that_refuses_every_token_is_not_asked_for_ever(era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        world.access = Forgetful()
        for path in ("/mcp", "/mcp/a"):
            with pytest.raises(Exception) as refused:
                await call(gateway, "a__whoami" if path == "/mcp" else "whoami", era, path)
            assert "www-authenticate" not in str(refused.value).lower()
            assert "resource_metadata" not in str(refused.value)
        assert world.counts["/token"] <= 2
        assert world.counts["/mcp"] < 20


async def test_missing_rights_are_asked_for_once(era: str, tmp_path: Path) -> None:
    async with (
        open_oauth_world(needs={"admin": "mcp admin"}) as world,
        open_authorized(configured(world), tmp_path) as gateway,
    ):
        await call(gateway, "a__whoami", era)
        assert user_of(await call(gateway, "a__admin", era)) == "itself"
        assert [a.form["scope"] for a in world.asked if a.path == "/token"] == ["mcp", "mcp admin"]


async def test_an_authorization_server_that_is_away_says_nothing_of_the_server(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        world.token_status = 503
        with pytest.raises(Exception) as refused:
            await call(gateway, "whoami", era, "/mcp/a")
        assert "auth_unavailable" in str(vars(refused.value)) + str(refused.value)
        status = gateway.actors.backends.status.get("a")
        assert status is None or status.failures == 0
        world.token_status = 200
        monkeypatch.setattr(sources, "AGAIN", 0.0)
        assert user_of(await call(gateway, "whoami", era, "/mcp/a")) == "itself"


async def test_a_secret_goes_to_the_first_issuer_that_a_server_names_and_to_no_other(era: str, tmp_path: Path) -> None:
    async with (
        open_oauth_world() as world,
        open_oauth_world() as thief,
        open_authorized(configured(world), tmp_path) as gateway,
    ):
        await call(gateway, "whoami", era, "/mcp/a")
        world.names = thief.origin
        world.forget_tokens()
        gateway.pass_time(60)
        with pytest.raises(Exception) as refused:
            await call(gateway, "whoami", era, "/mcp/a")
        assert "auth_refused" in repr(vars(refused.value))
        assert thief.counts["/.well-known/oauth-authorization-server"] >= 1
        assert thief.counts["/token"] == 0


class Forgetful(dict[str, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: Any) -> None:
        return
