"""WWW-Authenticate as servers write it."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.oauth.challenges import LONGEST, MOST, bearer, parse


def test_commas_separate_challenges_and_parameters_alike() -> None:
    found = parse(['Basic realm="a, b", Bearer scope="x y" , error=invalid_token,Negotiate abc==, Digest'])
    assert [(c.scheme, dict(c.parameters)) for c in found] == [
        ("basic", {"realm": "a, b"}),
        ("bearer", {"scope": "x y", "error": "invalid_token"}),
        ("negotiate", {}),
        ("digest", {}),
    ]


def test_quotes_may_hold_anything_and_tokens_may_stand_without() -> None:
    found = bearer([r'Bearer Resource_Metadata="https://a/\"x\",y", scope=read error="a=b, Basic c"'])
    assert found is not None
    assert found.parameters["resource_metadata"] == 'https://a/"x",y'
    assert found.scopes == ("read",)
    assert found.parameters["error"] == "a=b, Basic c"


def test_the_first_of_two_parameters_of_one_name_counts() -> None:
    found = bearer(['Bearer resource_metadata="https://a", resource_metadata="https://evil"'])
    assert found is not None
    assert found.parameters["resource_metadata"] == "https://a"


def test_several_fields_are_read_and_the_bearer_that_says_something_is_found() -> None:
    found = bearer(["Basic realm=x", "Bearer", 'Bearer realm="r"'])
    assert found is not None
    assert found.parameters == {"realm": "r"}
    assert bearer(["Basic realm=x"]) is None
    assert bearer(["Bearer"]) is not None
    empty = bearer(['Bearer scope=""'])
    assert empty is not None
    assert empty.scopes == ()


def test_what_is_too_long_or_too_much_is_not_read() -> None:
    assert parse(["Bearer realm=" + "x" * LONGEST]) == []
    assert len(parse([", ".join(f"S{n}" for n in range(1000))])) <= MOST
    assert len(parse(["Bearer " + ", ".join(f"p{n}=1" for n in range(1000))])[0].parameters) <= MOST


@given(st.lists(st.text(max_size=200), max_size=4))
def test_nothing_that_a_server_writes_raises(fields: list[str]) -> None:
    for challenge in parse(fields):
        assert challenge.scheme == challenge.scheme.lower()
    bearer(fields)
