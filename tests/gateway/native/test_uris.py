"""URIs against templates: what a regular expression would find, without its way of trying everything."""

import re
from urllib.parse import unquote

import pytest
import uritemplate
from hypothesis import given
from hypothesis import strategies as st

from gateway.native.errors import URI_MAX
from gateway.native.uris import parse

TEXTS = st.text("ab-/?", max_size=3)
TEMPLATES = st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=4)


@given(TEMPLATES, TEXTS, st.text("ab-/?%2", max_size=14))
def test_a_template_matches_as_greedily_as_an_expression_does(parts, after, uri):
    template, pattern = "", ""
    for number, (before, anything) in enumerate(parts):
        template += f"{before}{{{'+' if anything else ''}v{number}}}"
        pattern += f"{re.escape(before)}(?P<v{number}>{'.' if anything else '[^/?#]'}+)"
    found = re.fullmatch(pattern + re.escape(after), uri, re.DOTALL)
    expected = None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}
    assert parse(template + after).match(uri) == expected


def test_a_uri_made_of_separators_is_looked_at_once():
    template = parse("x://{a}-{b}-{c}-{d}-{e}/end")
    assert template.match("x://" + "-" * (URI_MAX - 4)) is None
    assert template.match("x://" + "-" * 100 + "/end") is not None


def test_a_uri_over_the_bound_is_no_templates():
    assert parse("x://{+path}").match("x://" + "p" * (URI_MAX - 4)) is not None
    assert parse("x://{+path}").match("x://" + "p" * URI_MAX) is None


@pytest.mark.parametrize(
    "text",
    [
        "x://none",
        "x://{a}/{a}",
        "x://{",
        "x://{a}}",
        "x://{}",
        "x://{=a}",
        "x://{a b}",
        "x://{a:x}",
        "x://{;a*}",
        "x://{?a}/b",
        "x://{?a}{b}",
        "x://{?a}{?b}",
        "x://{&a}",
        "x://?x=1{?a}",
        "x://{?a,a}",
        "x://{#a}{b}",
    ],
)
def test_other_templates_are_refused(text):
    with pytest.raises(ValueError, match="expected each of its variables once"):
        parse(text)


WORDS = st.text("ab %ü", min_size=1, max_size=5)
EXPRESSIONS = {
    "x://{a}/{b}": "text",
    "x://{a}{/b}": "text",
    "x://{a}{.b}": "text",
    "x://{a,b}": "text",
    "x://h{;a,b}": "text",
    "x://{+a}{#b}": "text",
    "x://h{?a,b}": "text",
    "x://h{?a}{&b}": "text",
    "x://h?fixed=1&y{&a,b}": "text",
    "x://{a}{?b}": "text",
    "x://h{/a*}{?b*}": "list",
    "x://{a*}/h{.b*}": "list",
}


@pytest.mark.parametrize(("text", "kind"), EXPRESSIONS.items())
@given(data=st.data())
def test_what_the_library_expands_is_read_back(text, kind, data):
    # What a variable of `+` stands for is no text in which an escape is to be told from what it stands for.
    word = WORDS.filter(lambda w: "%" not in w) if "+" in text else WORDS
    values = st.lists(word, min_size=1, max_size=3) if kind == "list" else word
    given_values = {"a": data.draw(values), "b": data.draw(values)}
    assert parse(text).match(uritemplate.expand(text, given_values)) == given_values


@pytest.mark.parametrize(
    ("text", "uri", "values"),
    [
        ("x://h{?a,b}", "x://h", {}),
        ("x://h{?a,b}", "x://h?b=2", {"b": "2"}),
        ("x://h{?a,b}", "x://h?b=2&a=", {"b": "2", "a": ""}),
        ("x://h{?a,b}", "x://h?c=2", None),
        ("x://h{?a,b}", "x://h?a=1&a=2", None),
        ("x://h{?a*}", "x://h?a=1&a=2", {"a": ["1", "2"]}),
        ("x://h?f=1{&a}", "x://h?f=1", {}),
        ("x://h?f=1{&a}", "x://h?f=1&a=2", {"a": "2"}),
        ("x://h?f=1{&a}", "x://h?f=2&a=2", None),
        ("x://{a}{#b}", "x://1", {"a": "1"}),
        ("x://{a}{#b}", "x://1#s", {"a": "1", "b": "s"}),
        ("x://{a:3}", "x://abc", {"a": "abc"}),
        ("x://{a:3}", "x://abcd", None),
        ("x://h{/p*}", "x://h/a/b%2Fc", {"p": ["a", "b/c"]}),
        ("x://h{/p*}", "x://h", None),
        ("x://{a.b}", "x://1", {"a.b": "1"}),
    ],
)
def test_what_may_be_left_out_and_what_may_not(text, uri, values):
    assert parse(text).match(uri) == values
