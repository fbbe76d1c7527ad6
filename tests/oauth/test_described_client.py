"""The client that a document of the gateway's own describes, where it has a key (`private_key_jwt`; CIMD, RFC 7523)."""

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from actors.protocol.table import Limits
from gateway.oauth import accounts
from gateway.oauth.assertions import thumbprint
from gateway.oauth.grants import Described
from gateway.store.memory import MemoryStore
from tests.oauth.test_user_accounts import TOKENS, Browser, configured, flow_of, user_of
from tests.support.authorized import Running, open_authorized
from tests.support.oauth import Asked, OAuthWorld, open_oauth_world
from tests.support.wire_client import RpcError

URL = "https://mcp.test/client.json"


def pem(key: Any) -> str:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


ONE, TWO = (pem(ec.generate_private_key(ec.SECP256R1())) for _ in range(2))


@asynccontextmanager
async def opened(world: OAuthWorld, folder: Path, *keys: str, store: Any = None) -> Any:
    settings = configured(world)
    settings["gateway"] |= {"clientMetadataUrl": URL, "clientKeys": list(keys)}
    async with open_authorized(settings, folder, store=store) as gateway:
        yield gateway


async def published(world: OAuthWorld, gateway: Running) -> dict[str, Any]:
    """What the authorization server finds at the client's address, as it is now."""
    page = await Browser(gateway, world).open("/connect/client-metadata.json")
    found: dict[str, Any] = json.loads(page)
    keys = found.get("jwks", {"keys": []})["keys"]
    world.public_keys[URL] = jwt.PyJWK(keys[0]).key if keys else None
    return found


def to_the_issuer(world: OAuthWorld) -> list[Asked]:
    return [asked for asked in world.asked if asked.path in ("/token", "/revoke")]


def document_only(world: OAuthWorld) -> None:
    """It takes clients that are URLs and sign, and no others."""
    world.says = {"token_endpoint_auth_methods_supported": ["private_key_jwt"]}


async def test_it_signs_in_users_renews_and_revokes_by_its_key(tmp_path: Path) -> None:
    async with open_oauth_world(cimd=True, dcr=False) as world, opened(world, tmp_path, ONE) as gateway:
        document_only(world)
        document = await published(world, gateway)
        assert (document["client_id"], document["token_endpoint_auth_method"]) == (URL, "private_key_jwt")
        [key] = document["jwks"]["keys"]
        assert set(key) == {"kty", "crv", "x", "y", "kid", "alg", "use"}, "nothing of it is private"
        browser = Browser(gateway, world, "ann")
        assert "is connected" in await browser.connect(await flow_of(gateway, "ann"))
        world.forget_tokens()
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        assert user_of(await client.call("a__whoami")) == "ann"
        assert world.counts["refreshed"] == 1
        await browser.press("/connect", await browser.open("/connect"), backend="a", action="disconnect")
        assert len(world.revoked) == 2
        for asked in to_the_issuer(world):
            assert asked.form["client_id"] == URL
            assert jwt.get_unverified_header(asked.form["client_assertion"])["kid"] == key["kid"]
        assert "PRIVATE KEY" not in repr(world.asked) + repr(gateway.log.events)


async def test_users_sign_in_to_its_pages_by_that_key(tmp_path: Path) -> None:
    async with open_oauth_world(cimd=True, dcr=False) as world:
        settings = configured(world)
        settings["gateway"] |= {"clientMetadataUrl": URL, "clientKeys": [ONE]}
        settings["gateway"]["auth"] |= {
            "issuers": [{"issuer": world.origin}],
            "browser": {"mode": "oidc", "clientId": URL},
        }
        async with open_authorized(settings, tmp_path) as gateway:
            document_only(world)
            await published(world, gateway)
            browser = Browser(gateway, world, "ann")
            onward = await browser.press("/connect", await browser.open("/connect"), action="sign-in")
            await browser.come_back(onward)
            [asked] = to_the_issuer(world)
            assert jwt.get_unverified_header(asked.form["client_assertion"])["alg"] == "ES256"


async def test_an_issuer_that_does_not_name_itself_has_a_document_and_a_callback_of_its_own(tmp_path: Path) -> None:
    """So that no answer of it is taken for that of another one (RFC 9700, section 4.4.2)."""
    async with open_oauth_world(cimd=True, dcr=False, iss=False) as world:
        settings = configured(world)
        settings["gateway"] |= {"publicUrl": "https://mcp.test", "clientKeys": [ONE]}
        async with open_authorized(settings, tmp_path) as gateway:
            document_only(world)
            browser = Browser(gateway, world, "ann")
            url = await flow_of(gateway, "ann")
            await browser.press(url, await browser.open(url), token=TOKENS["ann"])
            back = await browser.sign_in(await browser.press(url, await browser.open(url)))
            (asked,) = (asked.query for asked in world.asked if asked.path == "/authorize")
            document = json.loads(await browser.open(asked["client_id"]))
            assert document["client_id"] == asked["client_id"] != "https://mcp.test/connect/client-metadata.json"
            assert document["redirect_uris"] == [asked["redirect_uri"]] != ["https://mcp.test/connect/callback"]
            assert document["client_name"] == f"Stagedoor, for accounts of 127.0.0.1:{world.port}"
            world.public_keys[asked["client_id"]] = jwt.PyJWK(document["jwks"]["keys"][0]).key
            assert "is connected" in await browser.open(back)
            world.forget_tokens()
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "ann"
            assert world.counts["refreshed"] == 1
            other = json.loads(await browser.open("/connect/client-metadata.json"))
            assert other["redirect_uris"] == ["https://mcp.test/connect/callback"]
            for name in ("x", "_w", "W1s", "eA", "!"):  # of nobody: no text, and none that is an address
                assert (await browser.open(f"/connect/client-metadata/{name}.json")).count("This link is over") == 1


async def test_where_it_can_not_sign_another_client_is_registered(tmp_path: Path) -> None:
    async with open_oauth_world(cimd=True) as world, opened(world, tmp_path, ONE) as gateway:
        assert "is connected" in await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        assert world.counts["/register"] == 1


@pytest.mark.parametrize("before", [(), (TWO,)], ids=["no key", "another key"])
async def test_an_account_goes_on_with_the_key_that_the_client_has_now(before: tuple[str, ...], tmp_path: Path) -> None:
    store = MemoryStore(Limits(), trio.current_time)
    async with open_oauth_world(cimd=True, dcr=False) as world:
        if before:
            document_only(world)
        async with opened(world, tmp_path, *before, store=store) as gateway:
            await published(world, gateway)
            assert "is connected" in await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        document_only(world)
        world.forget_tokens()
        async with opened(world, tmp_path, ONE, *before, store=store) as gateway:
            await published(world, gateway)
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "ann"
            assert world.counts["refreshed"] == 1


async def test_a_key_that_is_not_known_there_yet_costs_nobody_his_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_oauth_world(cimd=True, dcr=False) as world, opened(world, tmp_path, ONE) as gateway:
        document_only(world)
        await published(world, gateway)
        assert "is connected" in await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        assert user_of(await client.call("a__whoami")) == "ann"
        world.forget_tokens()
        known, world.public_keys[URL] = world.public_keys[URL], None
        with pytest.raises(RpcError) as refused:
            await client.call("a__whoami")
        assert "auth_unavailable" in repr(vars(refused.value))
        world.public_keys[URL] = known
        monkeypatch.setattr(accounts, "AGAIN", 0.0)
        assert user_of(await client.call("a__whoami")) == "ann"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa.generate_private_key(65537, 2048), "PS256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
    ids=["RSA", "P-384", "Ed25519"],
)
def test_its_document_names_all_keys_by_their_thumbprints(key: Any, algorithm: str) -> None:
    found = Described(URL, (pem(key), pem(key)), algorithm).document("https://mcp.test/connect/callback")
    assert found["token_endpoint_auth_signing_alg"] == algorithm
    one, two = found["jwks"]["keys"]
    assert one == two
    assert len(one["kid"]) == 43
    assert not {"d", "p", "q", "dp", "dq", "qi", "k"} & set(one)
    assert jwt.PyJWK(one).key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    ) == key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_a_thumbprint_is_that_of_rfc_7638() -> None:
    n = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs"
        "tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1"
        "n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    )
    assert thumbprint({"e": "AQAB", "kty": "RSA", "n": n}) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
