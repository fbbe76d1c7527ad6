"""The calculator: Python's meaning, an answer at once whatever the expression, and nothing but numbers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.native.calculate import BITS, CHARACTERS, calculate, server
from gateway.native.errors import ToolError

NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6, allow_subnormal=False).map(repr),
    st.sampled_from(["0x1f", "0b101", "1_000", ".5", "2.", "1e3"]),
)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", " + ", " % "]), inner).map("".join),
        st.tuples(inner, st.just("**"), st.sampled_from(["2", "-1", "0.5", "(3)"])).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
        inner.map(lambda text: f"+{text}"),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "expression",
    [
        "1 + 2 * 3",
        "(1 + 2) * 3",
        "2 ** 3 ** 2",
        "-2 ** 2",
        "2 ** -1",
        "-7 // 2",
        "-7 % 3",
        "7 % -3",
        "7.5 // 2",
        "1 / 3",
        "4 / 2",
        "0.1 + 0.2",
        "-0.0",
        "10 ** 20 + 1",
        "2 ** 1000",
        "2 ** 4000 % 1_000_007",
        "10 ** 400 // 10 ** 399",
        "1 / 1e999",
        "0x10 + 0b11 + 0o17",
        "  (1\n+ 2)\t",
        "+".join(["1"] * (CHARACTERS // 2)),
        "(" * 150 + "1" + ")" * 150,
        "1 ** 10 ** 2000",
        "(-1) ** 10 ** 2000",
        "5e-324 / 2",
    ],
)
async def test_it_means_what_python_means(connect: Any, expression: str) -> None:
    client = await connect(server)
    result = await client.call("calculate", expression=expression)
    assert not result["isError"]
    expected = eval(expression.strip())
    assert result["structuredContent"] == {"expression": expression, "result": expected}
    assert type(result["structuredContent"]["result"]) is type(expected)
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@given(EXPRESSIONS)
def test_whatever_python_calculates_it_calculates(expression: str) -> None:
    try:
        expected = eval(expression)
    except (ZeroDivisionError, OverflowError):
        expected = None
    if isinstance(expected, complex) or expected in (float("inf"), float("-inf")) or expected != expected:
        expected = None
    try:
        assert calculate(expression)["result"] == expected
    except ToolError:
        assert expected is None or expected > 1e308 or len(expression) > CHARACTERS


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1 / 0", "Division by zero"),
        ("1 // 0.0", "Division by zero"),
        ("0 ** -1", "Division by zero"),
        ("5 % 0", "Division by zero"),
        ("9 ** 9 ** 9", "Too large"),
        ("9 ** 9 ** 9 ** 9 ** 9", "Too large"),
        ("(-3) ** 10 ** 300", "Too large"),
        ("2.0 ** 10 ** 400", "Too large"),
        ("1e308 * 10", "Too large"),
        ("-1e309", "Too large"),
        ("10 ** 309", "Too large"),
        (f"2 ** {BITS}", "Too large"),
        ("*".join(["9" * 60] * 30), "Too large"),
        ("10 ** 1000 / 3", "Too large"),
        ("1e999 - 1e999", "no number"),
        ("(-8) ** (1 / 3)", "no real number"),
        ("(-8) ** 0.5 ** 2", "no real number"),
        ("1" * (CHARACTERS + 1), "Too long"),
        ("(" * 500 + "1" + ")" * 500, "too many nested parentheses"),
        ("(1", "'(' was never closed"),
        ("", "Not an expression"),
        (" ", "Not an expression"),
        ("1 +", "Not an expression"),
        ("007", "Not an expression"),
        ("1__0", "Not an expression"),
        ("1\n2", "Not an expression"),
        ("1 == 1", "'=' can't be calculated"),
        ("1j", "'j' can't be calculated"),
        ("True", "'T' can't be calculated"),
        ("abs(1)", "'s' can't be calculated"),
        ("'a' * 9", "\"'\" can't be calculated"),
        ("[1][0]", "'[' can't be calculated"),
        ("１ + 1", "can't be calculated"),
        ("1 + \0", "can't be calculated"),
        ("\ud800", "can't be calculated"),
        ("a", "Not an expression of numbers"),
        ("a.b", "Not an expression of numbers"),
        ("1.0.a", "Not an expression"),
        ("1(2)", "Not an expression of numbers"),
        ("*1", "Not an expression"),
        ("**1", "Not an expression"),
        ("(*1)", "Not an expression"),
    ],
)
async def test_what_can_not_be_calculated_is_said(connect: Any, expression: str, said: str) -> None:
    client = await connect(server)
    assert said in await client.error("calculate", expression=expression)
    assert await client.text("calculate", expression="1") == '{"expression":"1","result":1}'


def test_what_the_parser_finds_too_deep_is_said() -> None:
    expression = "-" * (CHARACTERS - 1) + "1"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)  # of which some versions of Python make their parser's own
    try:
        result: Any = calculate(expression)["result"]
    except ToolError as error:
        result = str(error)
    finally:
        sys.setrecursionlimit(limit)
    assert result in (-1, "Nested too deeply")


async def test_its_schemas_are_plain(connect: Any) -> None:
    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["name"] == "calculate"
    assert tool["inputSchema"]["required"] == ["expression"]
    assert tool["inputSchema"]["properties"]["expression"]["type"] == "string"
    assert set(tool["outputSchema"]["properties"]) == {"expression", "result"}
    assert "expression" in await client.error("calculate", expression=1)
