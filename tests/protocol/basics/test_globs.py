"""Patterns: what fits them, and what can be said of two of them without a list of names."""

import itertools
import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol import uris
from actors.protocol.globs import TEMPLATE_MAX, covers, glob, meets, template
from actors.protocol.uris import normalized

patterns = st.text("ab*?", max_size=5) | st.sampled_from(["[ab]", "[!a]*", "*[!b]", "a[a-c]", "[a", "[]a]", "[!]"])
TEXTS = ["".join(text) for length in range(6) for text in itertools.product("abc", repeat=length)]


@given(patterns)
def test_a_pattern_fits_what_the_shell_says(pattern: str):
    assert [t for t in TEXTS if glob(pattern).matches(t)] == [t for t in TEXTS if fnmatchcase(t, pattern)]


@given(patterns, patterns)
def test_two_patterns_meet_exactly_if_some_text_fits_both(one: str, other: str):
    both = any(
        glob(one).matches(text) and glob(other).matches(text) for text in (*TEXTS, "d", "dd", "ad", "da", "[a", "[!]")
    )
    if both:
        assert meets(glob(one), glob(other))
    if len(one) + len(other) <= 5:
        assert meets(glob(one), glob(other)) is both


@given(patterns, patterns)
def test_what_covers_another_pattern_lets_all_through_that_fits_it(wide: str, narrow: str):
    if covers(glob(wide), glob(narrow)):
        assert all(glob(wide).matches(text) for text in TEXTS if glob(narrow).matches(text))


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("*", "a*b"), ("a*", "ab*"), ("*", ""), ("a?", "ab"), ("[a-c]*", "b*"), ("?*", "[!a]"), ("[!a]", "b"), ("a", "a")],
)
def test_a_wider_pattern_is_known_to_be_wider(wide: str, narrow: str):
    assert covers(glob(wide), glob(narrow))


def test_two_patterns_with_a_star_are_compared_at_their_ends_alone(monkeypatch: pytest.MonkeyPatch):
    """Whoever makes up templates has all others wait for what is found out of them."""
    monkeypatch.setattr("actors.protocol.globs._Walk", None)
    long = "/".join(f"seg{n}/{{x}}" for n in range(40))
    assert meets(glob("file:///*/secret/*.txt"), template(f"file:///{long}"))
    assert meets(glob("*/secret/*"), template(f"file:///{long}.txt"))
    assert not meets(glob("file:///*.md"), template(f"file:///{long}.txt"))
    assert not meets(glob("note:*"), template(f"file:///{long}"))
    assert meets(glob("file:///a?c"), template("file:///abc"))  # no star at all: one text


def test_a_template_meets_what_it_can_become():
    assert meets(template("file:///{path}"), glob("file:///pub/*"))
    assert meets(template("{+all}"), glob("x"))
    assert not meets(template("note://{id}"), glob("file:*"))
    assert not covers(glob("file:///pub/*"), template("file:///{path}"))


@given(patterns, st.lists(st.sampled_from(["a", "b", "{x}", "{+y}"]), max_size=4))
def test_a_template_is_all_that_it_can_become(pattern: str, parts: list[str]):
    names = template("".join(parts))
    assert names is not None
    fit = [TEXTS if part.startswith("{") else [part] for part in parts]
    become = {"".join(text) for text in itertools.islice(itertools.product(*(f[:40] for f in fit)), 2_000)}
    one = glob(pattern)
    assert meets(one, names) or not any(map(one.matches, become))
    assert not covers(one, names) or all(map(one.matches, become))
    assert covers(glob("*"), names)
    assert covers(one, names) <= meets(one, names)


def test_a_template_that_is_too_long_is_not_compared():
    assert template("a" * TEMPLATE_MAX) is not None
    assert template("a" * (TEMPLATE_MAX + 1)) is None


def test_a_pattern_that_wants_much_looking_back_takes_no_time():
    assert not glob("*a" * 40 + "b").matches("a" * 5000)


@pytest.mark.parametrize(
    ("uri", "read"),
    [
        ("FILE:///a/./b", "file:///a/b"),
        ("file:///a//b", "file:///a/b"),
        ("file:///%64oc", "file:///doc"),
        ("https://Example.COM/A", "https://example.com/A"),
        ("memo://Insights", "memo://Insights"),
        ("note:1..2", "note:1..2"),
        ("db://t?range=1..2", "db://t?range=1..2"),
        ("plain name", "plain name"),
        ("test:///a?b#c", "test:///a?b#c"),
        ("test:a/./b", "test:a/b"),
        ("x:////a", "x:///a"),
        ("file:/etc/passwd", "file:///etc/passwd"),
        ("FILE://LocalHost/etc//passwd", "file:///etc/passwd"),
        ("file://%6cocalhost/etc", "file:///etc"),
        ("file:////etc", "file:///etc"),
        ("file://server/share", "file://server/share"),
        ("file:etc", "file:etc"),
    ],
)
def test_a_uri_is_read_in_one_form(uri: str, read: str):
    assert normalized(uri) == read


@pytest.mark.parametrize(
    "uri",
    [
        "file:///pub/../etc/passwd",
        "file:///pub/..",
        "file:///pub/%2e%2e/x",
        "file:///pub/%2E./x",
        "file:///pub%2fx",
        "file:///pub%5Cx",
        "file:///pub\\..\\x",
        "file:///pub/%252e%252e/x",
        "db://t?file=../x",
        "file:///a\x00b",
        "file:///a%00b",
    ],
)
def test_a_uri_that_could_be_read_as_another_one_is_not_read(uri: str):
    assert normalized(uri) is None


@given(st.text("a./%2eE5cC\\:?&", max_size=12))
def test_nothing_that_is_read_leads_upwards(uri: str):
    read = normalized(uri)
    assert read is None or (".." not in re.split(r"[/?&:]", read) and "\\" not in read)


PARTS = [
    "file:",
    "https:",
    "note:",
    "File:",
    "//",
    "/",
    "/",
    "a",
    "b.c",
    "..",
    ".",
    "%2e",
    "%41",
    "{x}",
    "?",
    "#",
    "[::1]",
]
PARTS += ["localhost", "A", "\n", "\\", ":80", "é", "\ue000", "*", "@", "file:///", "https://h", "note://h/"]


@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_a_uri_that_is_in_its_one_form_is_not_read_and_comes_to_the_same(uri: str):
    quick = (normalized(uri), uris.template(uri))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("actors.protocol.uris._PLAIN", re.compile(r"(?!)"))
        assert quick == (normalized(uri), uris.template(uri))


@pytest.mark.parametrize(
    "uri", ["file:///a/b.txt", "https://h.example/a?b=/c#d", "note://n", "file:///a/", "x+y://h/a"]
)
def test_most_uris_need_no_reading(uri: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("actors.protocol.uris._normalized", None)
    below = f"{uri.rstrip('/')}/"
    assert (normalized(uri), uris.template(f"{below}{{x}}")) == (uri, f"{below}{{}}")
