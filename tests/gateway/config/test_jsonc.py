import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.jsonc import MAX_DEPTH, parse
from gateway.config.problems import ConfigError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    return str(caught.value)


@given(VALUES, st.sampled_from([None, 2]))
def test_reads_whatever_plain_json_says(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert parse(text, "f")[0] == json.loads(text)


def test_comments_and_a_comma_at_the_end_are_as_if_they_were_not_there() -> None:
    text = """// first
    { /* a
         block */ "a": [1, 2, /* between */ 3,], // to the end of the line
      "b": "// not a comment /* nor this */", } // last"""
    assert parse(text, "f")[0] == {"a": [1, 2, 3], "b": "// not a comment /* nor this */"}


def test_every_value_has_its_line() -> None:
    _, lines = parse('{\n"a": {\n"b": [1,\n2]\n}, "c":\n 3}', "f")
    assert lines == {(): 1, ("a",): 2, ("a", "b"): 3, ("a", "b", 0): 3, ("a", "b", 1): 4, ("c",): 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f:1: expecting value"),
        ("{", 'f:1: expected a key in double quotes or "}"'),
        ("{'a': 1}", 'f:1: expected a key in double quotes or "}"'),
        ('{"a" 1}', 'f:1: a: expected ":"'),
        ('{"a":\n1 "b": 2}', 'f:2: expected "," or "}"'),
        ("[1 2]", 'f:1: expected "," or "]"'),
        ("[,]", "f:1: [0]: expecting value"),
        ("{,}", 'f:1: expected a key in double quotes or "}"'),
        ("{} x", "f:1: something follows the end of the document"),
        ("{ /* ", "f:1: a comment is not closed"),
        ('{"a": "x\ny"}', "f:1: a: invalid control character at"),
        ('{"a": NaN}', "f:1: a: NaN is not a JSON value"),
        ('{"a": -Infinity}', "f:1: a: -Infinity is not a JSON value"),
        ('{"a": "\\ud800"}', "f:1: a: half a surrogate pair is not text"),
        ('{"a": 1,\n\n"a": 2}', "f:3: a: the key is there twice (first in line 1)"),
    ],
)
def test_what_is_not_json_with_comments_is_refused_with_its_line(text: str, said: str) -> None:
    assert refusal(text) == said


def test_a_number_too_long_to_convert_is_refused() -> None:
    assert refusal("[" + "1" * 5000 + "]").startswith("f:1: [0]: ")


def test_nesting_is_bounded() -> None:
    assert "nested more than" in refusal("[" * 10_000)
    parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f")


@given(st.text(alphabet='{}[]",:/*\\ \nau1'))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text, "f")
