"""Whose a bearer token is: JWTs by their issuer's keys, opaque ones by its word (attacks 3 and 6)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from actors.ports import Asker, Unproven
from actors.protocol.issuers import MEMBERS, Introspection, Issuer
from actors.protocol.rights import principal_id
from gateway.oauth.keys import AGAIN, KEPT
from gateway.oauth.verifier import TokenVerifier
from tests.support.bad_tokens import BAD
from tests.support.harness import RecordingLog, RecordingTelemetry
from tests.support.issuer import NOW, RESOURCE, FakeIssuer, another_key, elliptic, jwk_of, private

ISSUER = Issuer("https://idp.test")
BELOW = ("https://mcp.test/mcp/x", RESOURCE, "https://mcp.test")
INTROSPECTION = Introspection("https://idp.test/introspect", "us", "secret")


@asynccontextmanager
async def verifying(
    http: Any, *issuers: Issuer, log: RecordingLog | None = None, **more: Any
) -> AsyncIterator[TokenVerifier]:
    async with trio.open_nursery() as nursery:
        start = trio.current_time()

        def wall() -> float:
            return NOW + trio.current_time() - start

        found = issuers or (ISSUER,)
        yield TokenVerifier(found, http, nursery, log or RecordingLog(), RecordingTelemetry(), wall, **more)
        nursery.cancel_scope.cancel()


async def test_a_good_token_says_who_it_is_and_what_he_may_do(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        token = idp.token(scope="read write", groups=["dev", 7], client_id="app")
        found = await verifier.verify(token, [RESOURCE])
        assert isinstance(found, Asker)
        assert found.principal.name == principal_id("https://idp.test", "ann")
        assert (found.rights.groups, found.rights.scopes) == ({"dev"}, {"read", "write"})
        assert (found.rights.client, found.rights.expiry, found.issued) == ("app", NOW + 600, NOW)
        assert await verifier.verify(token, [RESOURCE]) == found
        assert idp.fetched == 1


GOOD: list[tuple[str, Any]] = [
    ("RS512", None),
    ("PS256", None),
    ("ES256", elliptic()),
    ("ES384", elliptic(ec.SECP384R1())),
    ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
]


@pytest.mark.parametrize(("algorithm", "key"), GOOD, ids=[row[0] for row in GOOD])
@pytest.mark.parametrize("kid", ["one", None])
async def test_every_asymmetric_algorithm_with_or_without_a_name(
    autojump_clock: Any, algorithm: str, key: Any, kid: str | None
) -> None:
    idp = FakeIssuer()
    if key is not None:
        idp.key, idp.keys = key, [jwk_of(another_key(), "other"), jwk_of(key)]
    async with verifying(idp) as verifier:
        assert isinstance(await verifier.verify(idp.token(algorithm, kid), [RESOURCE]), Asker)


@pytest.mark.parametrize("name", BAD)
async def test_3_what_is_wrong_in_any_way_is_nobodys(autojump_clock: Any, name: str) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        assert isinstance(await verifier.verify(BAD[name](idp), [RESOURCE]), Unproven)
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)
        assert all(url.startswith(idp.issuer) for url in idp.asked)


async def test_only_an_expired_one_is_called_so(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        assert await verifier.verify(idp.token(exp=NOW - 61), [RESOURCE]) == Unproven(expired=True)
        assert await verifier.verify(idp.token(aud="x"), [RESOURCE]) == Unproven()
        token = idp.token()
        assert isinstance(await verifier.verify(token, [RESOURCE]), Asker)
        await trio.sleep(660)
        assert await verifier.verify(token, [RESOURCE]) == Unproven(expired=True)


async def test_what_is_remembered_of_a_token_is_said_at_once_and_judged_as_ever(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        token, other = idp.token(), idp.token(aud="x")
        assert verifier.known(token, [RESOURCE]) is None
        found = await verifier.verify(token, [RESOURCE])
        await verifier.verify(other, [RESOURCE])
        assert verifier.known(token, [RESOURCE]) == found
        assert verifier.known(token, ["https://elsewhere.test/mcp"]) is None
        assert verifier.known(other, [RESOURCE]) is None
        assert verifier.known(token + "x", [RESOURCE]) is None
        await trio.sleep(660)
        assert verifier.known(token, [RESOURCE]) is None


async def test_7_an_unknown_issuer_causes_no_request(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        assert await verifier.verify(idp.token(iss="http://169.254.169.254"), [RESOURCE]) == Unproven()
        assert idp.asked == []


async def test_6_keys_of_one_issuer_verify_nothing_of_another(autojump_clock: Any) -> None:
    one, two = FakeIssuer(), FakeIssuer("https://two.test", another_key(), [jwk_of(another_key())])

    async def both(method: str, url: str, **more: Any) -> Any:
        return await (one if url.startswith(one.issuer) else two)(method, url, **more)

    async with verifying(both, ISSUER, Issuer(two.issuer)) as verifier:
        assert isinstance(await verifier.verify(two.token(), [RESOURCE]), Asker)
        assert await verifier.verify(two.token(iss=one.issuer), [RESOURCE]) == Unproven()
        ann, other = [await verifier.verify(idp.token(), [RESOURCE]) for idp in (one, two)]
        assert isinstance(ann, Asker)
        assert isinstance(other, Asker)
        assert ann.principal != other.principal


async def test_3_a_token_is_good_below_what_it_is_meant_for_and_never_above(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        for aud in (BELOW[0], BELOW[1], f"{RESOURCE}/", [RESOURCE, "https://idp.test/userinfo"]):
            assert isinstance(await verifier.verify(idp.token(aud=aud), BELOW), Asker)
        assert await verifier.verify(idp.token(aud=BELOW[0]), BELOW[1:]) == Unproven()
        assert await verifier.verify(idp.token(aud="https://mcp.test/mcp/y"), BELOW) == Unproven()
    async with verifying(idp, replace(ISSUER, audiences=("api://x",))) as verifier:
        assert isinstance(await verifier.verify(idp.token(aud="api://x"), BELOW), Asker)


async def test_a_strict_issuer_wants_the_type_of_an_access_token(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp, replace(ISSUER, strict_type=True)) as verifier:
        assert isinstance(await verifier.verify(idp.token(headers={"typ": "application/at+jwt"}), [RESOURCE]), Asker)
        assert await verifier.verify(idp.token(headers={"typ": "JWT"}), [RESOURCE]) == Unproven()


@pytest.mark.filterwarnings("ignore")
async def test_small_encrypting_and_private_keys_are_no_keys(autojump_clock: Any) -> None:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    private = {**jwk_of(another_key()), "d": "AQ"}
    for jwk in (jwk_of(small), jwk_of(another_key(), use="enc"), private, jwk_of(another_key(), key_ops=["sign"])):
        idp = FakeIssuer(key=small if jwk == jwk_of(small) else another_key(), keys=[jwk])
        async with verifying(idp) as verifier:
            assert await verifier.verify(idp.token(), [RESOURCE]) == Unproven()


# Keys that change ----------------------------------------------------------------------------------------------


async def test_6_a_flood_of_unknown_keys_is_one_fetch_in_half_a_minute(autojump_clock: Any) -> None:
    idp = FakeIssuer(slow=1.0)
    async with verifying(idp) as verifier:
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)
        for looks in (1, 2):
            async with trio.open_nursery() as nursery:
                for number in range(500):
                    nursery.start_soon(verifier.verify, idp.token(kid=f"k{number}"), [RESOURCE])
            for number in range(100):
                await verifier.verify(idp.token(kid=f"l{number}"), [RESOURCE])
            assert idp.fetched == 1 + looks
            await trio.sleep(AGAIN)


async def test_6_a_flood_that_comes_first_is_one_fetch_too(autojump_clock: Any) -> None:
    idp = FakeIssuer(slow=1.0)
    async with verifying(idp) as verifier:
        for number in range(100):
            await verifier.verify(idp.token(kid=f"k{number}"), [RESOURCE])
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)
        assert idp.fetched == 1


async def test_a_new_key_is_found_at_once_and_an_old_one_ends(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        old = idp.token()
        assert isinstance(await verifier.verify(old, [RESOURCE]), Asker)
        for name in ("two", "three"):
            idp.key, idp.keys = another_key(), [jwk_of(another_key(), name)]
            assert isinstance(await verifier.verify(idp.token(kid=name), [RESOURCE]), Asker)
        await trio.sleep(301)
        assert await verifier.verify(old, [RESOURCE]) == Unproven()


@pytest.mark.parametrize(("age", "lasts"), [(None, 300), (1, 300), (900, 900), (10**8, 86_400)])
async def test_keys_are_fetched_again_when_they_get_old_and_what_is_gone_ends_without_a_new_one(
    autojump_clock: Any, age: int | None, lasts: int
) -> None:
    idp = FakeIssuer(age=age)
    later = NOW + 10 * 86_400
    async with verifying(idp) as verifier:
        assert isinstance(await verifier.verify(idp.token(exp=later), [RESOURCE]), Asker)
        idp.keys = [jwk_of(another_key(), "two")]
        await trio.sleep(lasts - 1)
        assert isinstance(await verifier.verify(idp.token(exp=later, jti="1"), [RESOURCE]), Asker)
        assert idp.fetched == 1
        await trio.sleep(2)
        await verifier.verify(idp.token(exp=later, jti="2"), [RESOURCE])  # who brings this waits for nothing
        await trio.sleep(1)
        assert idp.fetched == 2
        assert await verifier.verify(idp.token(exp=later, jti="3"), [RESOURCE]) == Unproven()


async def test_6_a_token_that_names_no_key_costs_four_tries_at_most(autojump_clock: Any) -> None:
    idp = FakeIssuer(keys=[*(jwk_of(another_key(), f"k{number}") for number in range(4)), jwk_of(FakeIssuer().key)])
    async with verifying(idp) as verifier:
        assert await verifier.verify(idp.token(kid=None), [RESOURCE]) == Unproven()
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)


async def test_13_keys_go_on_for_a_day_while_their_issuer_is_away(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp) as verifier:
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)
        idp.away = True
        await trio.sleep(KEPT - 60)
        assert isinstance(await verifier.verify(idp.token(exp=NOW + 2 * KEPT), [RESOURCE]), Asker)
        await trio.sleep(1)
        assert await verifier.verify(idp.token(kid="new", exp=NOW + 2 * KEPT), [RESOURCE]) == Unproven(away=True)
        await trio.sleep(400)
        assert await verifier.verify(idp.token(exp=NOW + 2 * KEPT, jti="1"), [RESOURCE]) == Unproven(away=True)
        idp.away = False
        await trio.sleep(31)
        assert isinstance(await verifier.verify(idp.token(exp=NOW + 2 * KEPT, jti="2"), [RESOURCE]), Asker)


async def test_an_issuer_that_was_away_at_first_is_found_again(autojump_clock: Any) -> None:
    idp = FakeIssuer(away=True)
    async with verifying(idp) as verifier:
        for _ in range(20):
            assert await verifier.verify(idp.token(), [RESOURCE]) == Unproven(away=True)
        assert len(idp.asked) == 1
        idp.away = False
        await trio.sleep(5)
        assert isinstance(await verifier.verify(idp.token(), [RESOURCE]), Asker)


async def test_keys_of_an_issuer_outlive_a_configuration_that_says_the_same_of_it(autojump_clock: Any) -> None:
    idp, log = FakeIssuer(), RecordingLog()
    async with trio.open_nursery() as nursery:

        def configured(before: TokenVerifier | None, *issuers: Issuer) -> TokenVerifier:
            more: Any = {"before": before}
            return TokenVerifier(issuers, idp, nursery, log, RecordingTelemetry(), lambda: NOW, **more)

        one = configured(None, ISSUER)
        old, new = idp.token(scope="a"), idp.token(scope="b")
        assert isinstance(await one.verify(old, [RESOURCE]), Asker)
        idp.away = True
        another = replace(ISSUER, audiences=("api://x",), groups=(("teams",),))
        moved = replace(ISSUER, jwks_uri="https://idp.test/other/jwks")
        two = configured(one, another, Issuer("https://second.test"))
        for token in (old, new):
            assert isinstance(await two.verify(token, [RESOURCE]), Asker)
        assert idp.fetched == 1
        granted = await two.verify(idp.token(teams=["ops"]), ["api://x"])
        assert isinstance(granted, Unproven)  # what it is meant for is looked at by the configuration in force
        again = await two.verify(idp.token(aud="api://x", teams=["ops"]), ["https://elsewhere.test"])
        assert isinstance(again, Asker)
        assert again.rights.groups == {"ops"}
        for later in (configured(two, moved), configured(configured(two), ISSUER)):
            assert await later.verify(old, [RESOURCE]) == Unproven(away=True, reason="away")
        nursery.cancel_scope.cancel()


async def test_what_introspection_said_outlives_a_configuration_that_says_the_same(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    idp.opaque["secret-token"] = {"active": True, "sub": "ann", "aud": RESOURCE, "exp": NOW + 600}
    issuer = replace(ISSUER, introspection=INTROSPECTION)
    async with trio.open_nursery() as nursery:
        more: Any = (nursery, RecordingLog(), RecordingTelemetry(), lambda: NOW)
        one = TokenVerifier([issuer], idp, *more)
        assert isinstance(await one.verify("secret-token", [RESOURCE]), Asker)
        assert isinstance(await one.verify("made-up", [RESOURCE]), Unproven)
        idp.away = True
        two = TokenVerifier([issuer, Issuer("https://second.test")], idp, *more, before=one)
        assert isinstance(await two.verify("secret-token", [RESOURCE]), Asker)
        assert await two.verify("made-up", [RESOURCE]) == Unproven(away=True, reason="away")
        three = TokenVerifier([replace(issuer, scopes=("x",))], idp, *more, before=two)
        assert await three.verify("secret-token", [RESOURCE]) == Unproven(away=True, reason="away")
        nursery.cancel_scope.cancel()


async def test_who_hangs_up_takes_the_keys_from_nobody(autojump_clock: Any) -> None:
    idp = FakeIssuer(slow=2.0)
    async with verifying(idp) as verifier, trio.open_nursery() as nursery:
        found: list[Any] = []

        async def waits() -> None:
            found.append(await verifier.verify(idp.token(), [RESOURCE]))

        with trio.move_on_after(0.5):
            nursery.start_soon(waits)
            await verifier.verify(idp.token(), [RESOURCE])
        await trio.sleep(5)
        assert isinstance(found[0], Asker)
        assert idp.fetched == 1


# Opaque tokens -------------------------------------------------------------------------------------------------

OPAQUE = replace(ISSUER, introspection=INTROSPECTION)


async def test_an_opaque_token_is_what_its_issuer_says(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    idp.opaque["good"] = {"active": True, "sub": "ann", "aud": RESOURCE, "scope": "a b", "exp": NOW + 600}
    idp.opaque["robot"] = {"active": True, "client_id": "ci", "aud": [RESOURCE]}
    idp.opaque["foreign"] = {"active": True, "sub": "ann", "aud": "other"}
    idp.opaque["nobodys"] = {"active": True, "sub": "ann"}
    idp.opaque["its"] = {"active": True, "sub": "ann", "aud": RESOURCE, "iss": "https://evil.test"}
    idp.opaque["truthy"] = {"active": "true", "sub": "ann", "aud": RESOURCE}
    idp.opaque["refreshes"] = {"active": True, "sub": "ann", "aud": RESOURCE, "typ": "Refresh"}
    async with verifying(idp, OPAQUE) as verifier:
        good, robot = await verifier.verify("good", [RESOURCE]), await verifier.verify("robot", [RESOURCE])
        assert isinstance(good, Asker)
        assert isinstance(robot, Asker)
        assert (good.rights.subject, good.rights.scopes, robot.rights.subject) == ("ann", {"a", "b"}, "ci")
        for bad in ("foreign", "nobodys", "its", "truthy", "refreshes", "unknown"):
            assert await verifier.verify(bad, [RESOURCE]) == Unproven()
    async with verifying(idp, replace(OPAQUE, any_audience=True)) as verifier:
        assert isinstance(await verifier.verify("nobodys", [RESOURCE]), Asker)


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "private_key_jwt"])
async def test_the_gateway_says_who_it_is_as_its_issuer_wants_to_hear_it(autojump_clock: Any, method: str) -> None:
    idp, key = FakeIssuer(), elliptic()
    secret, signs = (None, private(key)) if method == "private_key_jwt" else ("a secret", None)
    asked = Introspection("https://idp.test/introspect", "us", secret, method, signs)
    idp.opaque = {"secret-token": {"active": True, **idp.claims()}}
    async with verifying(idp, replace(ISSUER, introspection=asked)) as verifier:
        assert isinstance(await verifier.verify("secret-token", [RESOURCE]), Asker)
    [(headers, form)] = idp.introspected
    assert form["token"] == "secret-token"
    match method:
        case "client_secret_basic":
            assert headers["Authorization"].startswith("Basic ")
            assert "client_secret" not in form
        case "client_secret_post":
            assert "Authorization" not in headers
            assert (form["client_id"], form["client_secret"]) == ("us", "a secret")
        case _:
            assert "Authorization" not in headers
            assert "client_secret" not in form
            options: Any = {"verify_exp": False, "verify_iat": False}
            claims = jwt.decode(
                form["client_assertion"], key.public_key(), ["ES256"], audience=idp.issuer, options=options
            )
            assert claims["iss"] == claims["sub"] == "us"


async def test_it_is_asked_again_after_a_minute_and_a_no_is_good_for_ten_seconds(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    idp.opaque["t"] = {"active": True, "sub": "ann", "aud": RESOURCE}
    async with verifying(idp, OPAQUE) as verifier:
        for _ in range(10):
            assert isinstance(await verifier.verify("t", [RESOURCE]), Asker)
        assert len(idp.asked) == 1
        del idp.opaque["t"]
        await trio.sleep(61)
        assert await verifier.verify("t", [RESOURCE]) == Unproven()
        await verifier.verify("t", [RESOURCE])
        assert len(idp.asked) == 2
        await trio.sleep(11)
        await verifier.verify("t", [RESOURCE])
        assert len(idp.asked) == 3


@pytest.mark.parametrize("status", [200, 400])
async def test_6_made_up_tokens_close_introspection_for_nobody(autojump_clock: Any, status: int) -> None:
    idp = FakeIssuer(strange=status)
    idp.opaque["t"] = {"active": True, "sub": "ann", "aud": RESOURCE}
    async with verifying(idp, OPAQUE) as verifier:
        assert await verifier.verify("made-up", [RESOURCE]) == Unproven()
        assert isinstance(await verifier.verify("t", [RESOURCE]), Asker)
        await trio.sleep(61)
        idp.slow = 2.0
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(verifier.verify, f"made-up-{number}", [RESOURCE])
            await trio.sleep(1)
            with trio.fail_after(2.5):
                assert isinstance(await verifier.verify("t", [RESOURCE]), Asker)
        assert len(idp.asked) < 60


@pytest.mark.parametrize(
    ("status", "error"), [(401, ""), (500, ""), (400, "invalid_client"), (400, "unauthorized_client")]
)
async def test_where_the_issuer_refuses_us_nobody_can_tell(autojump_clock: Any, status: int, error: str) -> None:
    idp = FakeIssuer(strange=status, error=error)
    async with verifying(idp, OPAQUE) as verifier:
        assert await verifier.verify("t", [RESOURCE]) == Unproven(away=True)


async def test_a_jwt_that_was_revoked_ends_within_a_minute_where_it_is_always_asked(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    token = idp.token()
    idp.opaque[token] = {"active": True, "sub": "ann", "aud": RESOURCE}
    async with verifying(idp, replace(OPAQUE, always=True)) as verifier:
        assert isinstance(await verifier.verify(token, [RESOURCE]), Asker)
        del idp.opaque[token]
        await trio.sleep(61)
        assert await verifier.verify(token, [RESOURCE]) == Unproven()


# Claims of the well-known --------------------------------------------------------------------------------------


async def test_several_issuers_are_asked_in_their_order_and_who_once_knew_a_token_first(autojump_clock: Any) -> None:
    idps = [FakeIssuer(f"https://{number}.test") for number in range(4)]
    for idp in idps[2:]:
        idp.opaque[f"of-{idp.issuer[8]}"] = {"active": True, "sub": "ann", "aud": RESOURCE}

    async def all_of(method: str, url: str, **more: Any) -> Any:
        return await next(idp for idp in idps if url.startswith(idp.issuer))(method, url, **more)

    found = [Issuer(i.issuer, introspection=replace(INTROSPECTION, endpoint=f"{i.issuer}/introspect")) for i in idps]
    async with verifying(all_of, *found) as verifier:
        assert isinstance(await verifier.verify("of-2", [RESOURCE]), Asker)
        assert [len(idp.asked) for idp in idps] == [1, 1, 1, 0]
        await trio.sleep(61)
        idps[0].away = True
        assert isinstance(await verifier.verify("of-2", [RESOURCE]), Asker)
        assert [len(idp.asked) for idp in idps] == [1, 1, 2, 0]
        assert await verifier.verify("of-3", [RESOURCE]) == Unproven(away=True)
        assert [len(idp.asked) for idp in idps] == [2, 2, 3, 0]


async def test_a_bound_token_is_taken_where_that_is_said(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp, replace(ISSUER, bound=True)) as verifier:
        assert isinstance(await verifier.verify(idp.token(cnf={"jkt": "x"}), [RESOURCE]), Asker)


async def test_the_owner_is_told_of_groups_that_a_token_has_no_room_for(autojump_clock: Any) -> None:
    idp, log = FakeIssuer(), RecordingLog()
    async with verifying(idp, log=log) as verifier:
        found = await verifier.verify(idp.token(groups=["dev"], _claim_names={"groups": "src1"}), [RESOURCE])
        assert isinstance(found, Asker)
        assert found.rights.groups == frozenset()
        assert found.rights.partial, "rules that deny by a group count all the same"
        many = await verifier.verify(idp.token(groups=[f"g{n}" for n in range(MEMBERS + 1)]), [RESOURCE])
        assert isinstance(many, Asker)
        assert (len(many.rights.groups), many.rights.partial) == (MEMBERS, True)
        assert log.events("groups_left_out") == [{"issuer": idp.issuer}]


async def test_claims_that_rules_ask_about_come_with_the_rights_and_no_others(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    asked = frozenset({"department", "levels", "long", "missing"})
    async with verifying(idp, claims=asked) as verifier:
        token = idp.token(department="it", levels={"a": [1]}, long="x" * 5000, email="ann@x.test")
        found = await verifier.verify(token, [RESOURCE])
        assert isinstance(found, Asker)
        assert found.rights.claims == (("department", '"it"'), ("levels", '{"a": [1]}'))
        assert found.rights.cut == ("long",)
        other = await verifier.verify(idp.token(department="hr"), [RESOURCE])
        assert isinstance(other, Asker)
        assert other.principal == found.principal
        assert other.rights.digest != found.rights.digest
        more: Any = {"before": verifier, "claims": frozenset({"email"})}
        async with trio.open_nursery() as nursery:
            later = TokenVerifier([ISSUER], idp, nursery, RecordingLog(), RecordingTelemetry(), lambda: NOW, **more)
            again = await later.verify(token, [RESOURCE])  # what was known of it lacks what is asked about now
            assert isinstance(again, Asker)
            assert again.rights.claims == (("email", '"ann@x.test"'),)


async def test_with_bound_clients_a_user_of_another_client_is_another_principal(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    async with verifying(idp, bind_client=True) as verifier:
        one, two = [await verifier.verify(idp.token(azp=client), [RESOURCE]) for client in ("a", "b")]
        assert isinstance(one, Asker)
        assert isinstance(two, Asker)
        assert one.principal != two.principal


async def test_12_the_log_says_why_once_in_a_while_and_never_the_token(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    log = RecordingLog()
    async with verifying(idp, log=log) as verifier:
        token = idp.token(aud="other")
        for _ in range(50):
            await verifier.verify(token, [RESOURCE])
        assert log.events("token_refused") == [{"reason": "audience"}]
        assert token not in json.dumps(log.lines, default=str)
