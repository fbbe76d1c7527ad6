import pytest

from gateway.config.problems import ConfigError
from gateway.config.yamlfile import parse


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    return str(caught.value)


def test_values_and_lines_are_those_of_the_file() -> None:
    value, lines = parse("a:\n  b: [1, two]\nc: true\n", "f")
    assert value == {"a": {"b": [1, "two"]}, "c": True}
    assert lines == {(): 1, ("a",): 1, ("a", "b"): 2, ("a", "b", 0): 2, ("a", "b", 1): 2, ("c",): 3}


def test_aliases_and_merges_are_followed_and_may_be_overridden() -> None:
    text = "base: &base {x: 1, y: 2}\nuse:\n  <<: *base\n  y: 3\nagain: *base\n"
    assert parse(text, "f")[0] == {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}, "again": {"x": 1, "y": 2}}


def test_an_empty_file_is_nothing() -> None:
    assert parse("# only a comment\n", "f") == (None, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: a: the key is there twice (first in line 1)"),
        ("a: [1\n", "f:2: expected ',' or ']', but got '<stream end>'"),
        ("? [x]\n: 1\n", "f:1: a key must be a word"),
        ("a: !!python/name:os.system\n", "f:1: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "f:2: but found another document"),
        ("a: 2026-13-45\n", "f:1: a: month must be in 1..12"),
        ("a: *nowhere\n", "f:1: found undefined alias"),
        ("a: \x07\n", "f: unacceptable character"),
    ],
)
def test_what_is_not_yaml_of_the_safe_schema_is_refused(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_a_tag_makes_no_object_of_a_mapping() -> None:
    assert parse("a: !!python/object:os.system {x: 1}\n", "f")[0] == {"a": {"x": 1}}


def test_an_alias_of_an_outer_node_is_refused() -> None:
    assert "nested more than" in refusal("a: &a\n  b: *a\n")


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 100000 values" in refusal("\n".join(lines))
