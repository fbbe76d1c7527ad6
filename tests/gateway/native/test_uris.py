"""URIs against templates: what a regular expression would find, without its way of trying everything."""

import re
from urllib.parse import unquote

import pytest
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


@pytest.mark.parametrize("text", ["x://none", "x://{a}/{a}", "x://{a*}", "x://{", "x://{a}}"])
def test_other_templates_are_refused(text):
    with pytest.raises(ValueError, match="expected each of its variables once"):
        parse(text)
