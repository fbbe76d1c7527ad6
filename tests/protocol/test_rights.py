"""What a token gives as a value: its digest, and the name of whom it stands for."""

from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.rights import NO_RIGHTS, Rights, owner_of, principal_id

NAMES = st.frozensets(st.text(max_size=4), max_size=4)
RIGHTS = st.builds(Rights, st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), NAMES, NAMES)


@given(RIGHTS, RIGHTS)
def test_the_digest_is_the_same_for_the_same_rights_and_for_no_others(one: Rights, other: Rights) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_the_digest_is_that_of_any_process_and_does_not_know_the_expiry() -> None:
    rights = Rights("https://idp", "ann", "app", frozenset({"b", "a"}), frozenset({"z"}), 12.0)
    again = Rights("https://idp", "ann", "app", frozenset({"a", "b"}), frozenset({"z"}), 99.0)
    assert rights.digest == again.digest == "e20f2badd8efad3b8cb03603d7d3f9bb"
    assert rights.digest != NO_RIGHTS.digest


@given(*[st.text(max_size=6)] * 4)
def test_no_two_subjects_of_any_issuers_have_one_name(issuer: str, subject: str, other: str, its: str) -> None:
    same = principal_id(issuer, subject) == principal_id(other, its)
    assert same == ((issuer, subject) == (other, its))


@given(st.text(max_size=12), st.text(max_size=12))
def test_a_name_says_whose_it_is(issuer: str, subject: str) -> None:
    name = principal_id(issuer, subject)
    assert owner_of(name) == (issuer, subject)
    assert owner_of(f"{name}:3:app") is None
    for other in ("ann", "", ":", "1:", "9:a:1:b", "\N{SUPERSCRIPT TWO}:ab:1:c", f"{'9' * 40}:a"):
        assert owner_of(other) is None
