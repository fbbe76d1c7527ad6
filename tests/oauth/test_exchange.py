"""Servers that get, in place of the token by which a user asks, one that its issuer gives for it (RFC 8693)."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import NO_RIGHTS, Asker, Failed, Principal, Refused, Rights
from actors.protocol.table import Limits
from gateway.config.problems import ConfigError
from gateway.oauth import sources
from gateway.oauth.subjects import AGAIN, SOON, Subjects
from gateway.sealing import AesSealer
from gateway.store.memory import MemoryStore
from tests.support.authorized import Running, open_authorized
from tests.support.oauth import EXCHANGE, OAuthWorld, open_oauth_world

RESOURCE = "http://127.0.0.1:8080/mcp"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
PLACES = pytest.mark.parametrize(("path", "tool"), [("/mcp/a", "whoami"), ("/mcp", "a__whoami")])


def configured(world: OAuthWorld, **auth: Any) -> dict[str, Any]:
    given = {"mode": "exchange", "clientId": "gw", "clientSecret": "gw secret"} | auth
    return {
        "mcpServers": {"a": {"url": world.url, "auth": given}},
        "gateway": {"auth": {"issuers": [{"issuer": world.origin}], "tokens": {"robot": "R" * 32}}},
    }


async def call(gateway: Running, token: str, era: str, tool: str = "a__whoami", path: str = "/mcp") -> Any:
    """The result of one call by a client of either era."""
    if era == "modern":
        return await gateway.modern(path, token=token).start_call(tool).complete()
    client = gateway.legacy(path, token=token)
    await client.connect()
    return await client.call(tool)


def user_of(result: Any) -> str:
    found: str = json.loads(result["content"][0]["text"])["user"]
    return found


def exchanges(world: OAuthWorld) -> list[dict[str, str]]:
    return [a.form for a in world.asked if a.path == "/token"]


@ERAS
@pytest.mark.parametrize("path", ["/mcp", "/mcp/a"])
@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_a_call_goes_with_what_the_issuer_gives_for_its_users_token(
    kind: str, path: str, era: str, tmp_path: Path
) -> None:
    async with open_oauth_world(eras=kind) as world, open_authorized(configured(world), tmp_path) as gateway:
        tool = "a__whoami" if path == "/mcp" else "whoami"
        token = world.token_for(RESOURCE, "ann")
        for _ in range(2):
            assert user_of(await call(gateway, token, era, tool, path)) == "ann"
        forms = exchanges(world)
        assert {form["grant_type"] for form in forms} == {EXCHANGE}
        assert {form["subject_token"] for form in forms} == {token}
        assert {form["resource"] for form in forms} == {world.url}
        assert len(forms) <= 2, "once for the user's rights, and once for what the gateway asks itself"
        # Attack 2: its own issuer alone has seen it.
        assert token not in repr([asked for asked in world.asked if asked.path != "/token"])
        assert token not in repr(gateway.log.events) + repr(gateway.metrics.numbers())
        assert "canary-" not in repr(gateway.log.events) + repr(gateway.metrics.numbers()) + repr(gateway.trail.lines)
        assert {(line["event"], line["server"], line["iss"]) for line in gateway.trail.lines} == {
            ("token.fetch", "a", world.origin)
        }
        assert token not in repr(gateway.trail.lines)


@ERAS
async def test_each_user_has_his_own_and_each_set_of_rights_too(era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        tokens = {
            "ann": world.token_for(RESOURCE, "ann", scope="mcp"),
            "ann may more": world.token_for(RESOURCE, "ann", scope="mcp write"),
            "bob": world.token_for(RESOURCE, "bob", scope="mcp"),
        }
        seen: dict[str, set[str]] = {name: set() for name in tokens}
        given: dict[str, set[str]] = {name: set() for name in tokens}
        for _ in range(3):
            for name, token in tokens.items():
                before = len(world.calls())
                seen[name].add(user_of(await call(gateway, token, era)))
                given[name].add(world.access[world.calls()[before].token].scopes)
        assert seen == {"ann": {"ann"}, "ann may more": {"ann"}, "bob": {"bob"}}
        assert given == {"ann": {"mcp"}, "ann may more": {"mcp write"}, "bob": {"mcp"}}


@ERAS
@PLACES
@pytest.mark.parametrize("support", ["optional", "required"])
async def test_a_tool_that_may_run_as_a_task_is_called_with_the_rights_of_its_caller(
    support: str, path: str, tool: str, era: str, tmp_path: Path
) -> None:
    """Also where the gateway makes the task, and asks for its result, for a client that knows none."""
    async with (
        open_oauth_world(eras="legacy", as_tasks=support) as world,
        open_authorized(configured(world), tmp_path) as gateway,
    ):
        tokens = {scope: world.token_for(RESOURCE, "ann", scope=scope) for scope in ("mcp", "mcp write")}
        for _ in range(2):
            for scope, token in tokens.items():
                before = len(world.asked)
                assert user_of(await call(gateway, token, era, tool, path)) == "ann"
                kinds = {"tools/call", "tasks/get", "tasks/result"}
                asked = [a for a in world.asked[before:] if a.path == "/mcp" and a.method == "POST"]
                said = {
                    a.message["method"]: world.access[a.token].scopes for a in asked if a.message["method"] in kinds
                }
                assert ("tasks/result" in said) is (support == "required")
                assert set(said.values()) == {scope}


@ERAS
@PLACES
async def test_each_call_goes_with_what_is_given_for_a_token_that_says_the_same(
    path: str, tool: str, era: str, tmp_path: Path
) -> None:
    """Whichever claim says it: nobody but issuer and server knows which of them decide."""
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        for later in range(2):
            tokens = {o: world.token_for(RESOURCE, "ann", scope="mcp", org_id=o, jti=f"{o}{later}") for o in ("a", "b")}
            for org, token in tokens.items():
                assert user_of(await call(gateway, token, era, tool, path)) == "ann"
                asked_by = world.calls()[-1].token
                assert world.given_for[asked_by] == org
            if not later:
                before = len(exchanges(world))
        assert len(exchanges(world)) == before, "another token that says the same gives the same"


@ERAS
@PLACES
@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_each_set_of_rights_is_shown_what_the_server_lists_to_it(
    kind: str, path: str, tool: str, era: str, tmp_path: Path
) -> None:
    """By whichever token the user came last: another client of his sees no more than its own token gives."""
    async with (
        open_oauth_world(eras=kind, needs={"admin": "write"}, by_scope=True) as world,
        open_authorized(configured(world), tmp_path) as gateway,
    ):
        admin = tool.replace("whoami", "admin")
        tokens = {rights: world.token_for(RESOURCE, "ann", scope=rights) for rights in ("mcp", "mcp write")}
        sessions = {}
        for rights, token in tokens.items():
            if era == "legacy":
                sessions[rights] = gateway.legacy(path, token=token)
                await sessions[rights].connect()

        async def listed(rights: str) -> bool:
            if era == "modern":
                client: Any = gateway.modern(path, token=tokens[rights])
                found = await client.start("tools/list").complete()
            else:
                found = await sessions[rights].request("tools/list")
            return admin in [one["name"] for one in found["tools"]]

        for _ in range(2):
            for rights, token in tokens.items():
                assert await listed(rights) is ("write" in rights)
                assert user_of(await call(gateway, token, era, tool, path)) == "ann"
            for rights in tokens:
                if era == "legacy":  # over a connection of the session's own by now
                    assert user_of(await sessions[rights].call(tool)) == "ann"
                assert await listed(rights) is ("write" in rights)
            assert user_of(await call(gateway, tokens["mcp write"], era, admin, path)) == "ann"


@ERAS
async def test_an_issuer_that_knows_no_resources_is_told_an_audience_alone(era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world:
        said = configured(world, omitResource=True, audience="tracker")
        async with open_authorized(said, tmp_path) as gateway:
            assert user_of(await call(gateway, world.token_for(RESOURCE, "ann"), era)) == "ann"
        assert {(form.get("resource"), form["audience"]) for form in exchanges(world)} == {(None, "tracker")}


@ERAS
async def test_with_delegation_the_issuer_is_told_who_acts(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world, delegation=True), tmp_path) as gateway:

        def own() -> list[dict[str, str]]:
            return [form for form in exchanges(world) if form["grant_type"] != EXCHANGE]

        for user in ("ann", "bob"):
            assert user_of(await call(gateway, world.token_for(RESOURCE, user), era)) == user
            assert world.access[world.calls()[-1].token].actor == "gw"
        assert own() == [{"grant_type": "client_credentials"}], "the gateway's own token is kept"
        acting = {form["actor_token"] for form in exchanges(world) if form["grant_type"] == EXCHANGE}
        assert acting.isdisjoint(asked.token for asked in world.asked), "it goes to the issuer alone"
        [token] = acting
        del world.access[token]  # the issuer has forgotten it
        monkeypatch.setattr(sources, "AGAIN", 0.0)
        cat = world.token_for(RESOURCE, "cat")
        with suppress(Exception):  # the first who asks may be refused for it
            await call(gateway, cat, era, "whoami", "/mcp/a")
        assert user_of(await call(gateway, cat, era, "whoami", "/mcp/a")) == "cat"
        assert len(own()) == 2


@ERAS
async def test_it_ends_with_the_token_by_which_its_user_asks(era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        short = world.token_for(RESOURCE, "ann", 30)
        assert user_of(await call(gateway, short, era)) == "ann"
        last = world.calls()[-1].token
        gateway.pass_time(31)  # the gateway takes it for a while longer, since clocks may be apart
        longer = world.token_for(RESOURCE, "ann", 3600)
        assert user_of(await call(gateway, longer, era)) == "ann"
        assert world.calls()[-1].token != last
        assert exchanges(world)[-1]["subject_token"] == longer


@ERAS
async def test_another_replica_exchanges_the_token_that_came_to_the_first(era: str, tmp_path: Path) -> None:
    """It is not in the letter, but sealed on the shelf: for this principal and these rights."""
    store = MemoryStore(Limits(), trio.current_time)
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    async with (
        open_oauth_world() as world,
        open_authorized(configured(world), folders[0], store=store) as one,
        open_authorized(configured(world), folders[1], store=store.beside()) as other,
    ):
        token = world.token_for(RESOURCE, "ann")
        assert user_of(await call(one, token, era)) == "ann"
        subjects = other.authorizing.authorization.subjects
        key = f"{len(world.origin)}:{world.origin}:3:ann"
        found = await subjects.find(key, NO_RIGHTS)
        assert found is not None
        assert found.token == token
        assert await subjects.find("another", NO_RIGHTS) is None
        assert token not in repr(vars(store.shelf)) + repr(found)


async def test_a_token_that_the_store_has_not_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away when the token came first, or has lost it: other replicas find it a moment later all the same."""
    now, asker = [1000.0], Asker(Principal("ann"), Rights("https://i.example", "ann", expiry=9000.0))
    shelf, sealer = MemoryStore(Limits(), lambda: now[0]).shelf, AesSealer([b"k" * 32])
    here = Subjects(shelf, sealer, lambda: now[0])
    put, puts = shelf.put, []

    async def counted(key: str, *given: Any, **more: Any) -> Any:
        puts.append(key)
        return Failed(Refused.AWAY) if away else await put(key, *given, **more)

    async def found() -> bool:
        return await Subjects(shelf, sealer, lambda: now[0]).find("ann", asker.rights) is not None

    monkeypatch.setattr(shelf, "put", counted)
    away = True
    for _ in range(3):
        await here.note(asker, "token")
    assert len(puts) == 2, "nobody waits for the store each time"
    away = False
    now[0] += SOON
    await here.note(asker, "token")
    assert await found()
    for key in puts:
        await shelf.take(key)
    for _ in range(3):
        await here.note(asker, "token")
    assert len(puts) == 4
    now[0] += AGAIN
    await here.note(asker, "token")
    assert await found()


async def test_a_token_that_ends_leaves_the_gateway_with_that_by_which_its_user_goes_on() -> None:
    """What belongs to no request of his would else be refused until the other one is written again."""
    now = [1000.0]
    subjects = Subjects(MemoryStore(Limits(), lambda: now[0]).shelf, AesSealer([b"k" * 32]), lambda: now[0])
    long, short = (
        Asker(Principal("ann"), Rights("https://i.example", "ann", client, expiry=expiry))
        for client, expiry in (("one", 9000.0), ("other", 1030.0))
    )
    await subjects.note(long, "long")
    await subjects.note(short, "short")
    now[0] = 1040.0
    await subjects.note(long, "long")
    found = await subjects.find("ann", NO_RIGHTS)
    assert found is not None
    assert found.token == "long"


@ERAS
@PLACES
async def test_who_asks_by_a_token_of_nobodys_can_not_use_it(path: str, tool: str, era: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        with pytest.raises(Exception) as refused:
            await call(gateway, "R" * 32, era, tool, path)
        assert "auth_refused" in repr(vars(refused.value))
        assert exchanges(world) == []
        assert "R" * 32 not in repr(world.asked)
        status = gateway.actors.backends.status.get("a")
        assert status is None or status.failures == 0


@ERAS
@pytest.mark.parametrize("said", [None, "urn:ietf:params:oauth:token-type:refresh_token"])
async def test_what_is_no_access_token_goes_nowhere(said: str | None, era: str, tmp_path: Path) -> None:
    async with open_oauth_world(issued_type=said) as world, open_authorized(configured(world), tmp_path) as gateway:
        with pytest.raises(Exception) as refused:
            await call(gateway, world.token_for(RESOURCE, "ann"), era, "whoami", "/mcp/a")
        assert "auth_refused" in repr(vars(refused.value))
        assert "canary-" not in repr([asked for asked in world.asked if asked.path == "/mcp"])


@ERAS
@PLACES
async def test_an_issuer_that_is_away_is_no_fault_of_the_user(
    path: str, tool: str, era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path) as gateway:
        token = world.token_for(RESOURCE, "ann")
        world.token_status = 503
        with pytest.raises(Exception) as refused:
            await call(gateway, token, era, tool, path)
        assert "auth_unavailable" in repr(vars(refused.value))
        world.token_status = 200
        monkeypatch.setattr(sources, "AGAIN", 0.0)
        assert user_of(await call(gateway, token, era, tool, path)) == "ann"


@ERAS
async def test_missing_rights_are_asked_for_at_the_issuer(era: str, tmp_path: Path) -> None:
    async with (
        open_oauth_world(needs={"admin": "mcp admin"}) as world,
        open_authorized(configured(world, scopes=["mcp"], audience="tracker"), tmp_path) as gateway,
    ):
        token = world.token_for(RESOURCE, "ann")
        assert user_of(await call(gateway, token, era)) == "ann"
        assert user_of(await call(gateway, token, era, "a__admin")) == "ann"
        assert exchanges(world)[-1]["scope"] == "mcp admin"
        assert exchanges(world)[-1]["audience"] == "tracker"


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        ({"clientSecret": None}, "clientSecret"),
        ({"issuer": "https://another.example"}, "is none of `gateway.auth.issuers`"),
    ],
)
async def test_what_could_not_work_is_refused_at_start(auth: dict[str, Any], told: str, tmp_path: Path) -> None:
    async with open_oauth_world() as world:
        with pytest.raises(ConfigError, match=told):
            async with open_authorized(configured(world, **auth), tmp_path):
                pass
