import pytest

from gateway.config.expand import expand

ENVIRON = {"NAME": "value", "EMPTY": "", "_X1": "x"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain $NAME $ {} $$", "plain $NAME $ {} $$"),
        ("${NAME}", "value"),
        ("a-${NAME}-${_X1}", "a-value-x"),
        ("${env:NAME}", "value"),
        ("${NAME:-other}", "value"),
        ("${GONE:-other}", "other"),
        ("${env:GONE:-other}", "other"),
        ("${GONE:-}", ""),
        ("${GONE:-http://h:1/p?a=b}", "http://h:1/p?a=b"),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("$${NAME}", "${NAME}"),
    ],
)
def test_references_are_expanded_in_place(text: str, expanded: str) -> None:
    assert expand(text, ENVIRON) == (expanded, [])


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "b"}) == ("${B}", [])


def test_lists_and_objects_are_expanded_inside_and_keys_stay() -> None:
    value = {"${NAME}": ["${NAME}", 1, True, None, {"a": "${NAME}"}]}
    assert expand(value, ENVIRON)[0] == {"${NAME}": ["value", 1, True, None, {"a": "value"}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${GONE}", "the variable GONE is not set and there is no default"),
        ("${env:GONE}", "the variable GONE is not set and there is no default"),
        ("${input:token}", "${input:token} is asked for by an editor"),
        ("${workspaceFolder}", "the variable workspaceFolder is not set"),
        ("${a b}", "${a b} is none of ${VAR}, ${VAR:-default}, ${env:VAR}"),
        ("${NAME:+x}", "${NAME:+x} is none of"),
        ("${}", "${} is none of"),
        ("${NAME", '"${" is not closed'),
    ],
)
def test_what_cannot_be_expanded_is_told_with_its_place(text: str, said: str) -> None:
    _, problems = expand({"a": [text]}, ENVIRON)
    assert [problem.path for problem in problems] == [("a", 0)]
    assert problems[0].message.startswith(said)
