"""A calculator: `+ - * / // % **` and parentheses with Python's meaning, for numbers that JSON can carry.

An expression is parsed, never run. What an operation would take is bounded before it is done, so that an answer comes
at once, whatever the expression: it runs in a thread, since even so the longest takes a while.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypedDict

from pydantic import Field

from gateway.native.errors import ToolError
from gateway.native.server import Server

CHARACTERS: Final = 2000
"""Of an expression."""

BITS: Final = 8192
"""Of a whole number on the way to the result."""

Number: TypeAlias = int | float

_OTHER: Final = re.compile(r"[^0-9a-fA-FoOxX_.+*/%()\s-]")
"""What stands in no expression of numbers; the letters are those of `1e5`, `0xff`, `0o17` and `0b11`."""

_SIGNS: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class Calculated(TypedDict):
    """An expression and what it comes to."""

    expression: str
    result: Number


server = Server(
    "stagedoor-calculate",
    version="1.0",
    title="Calculator",
    description="Calculates expressions of numbers.",
    instructions="Calculates exactly with whole numbers, and as Python does with others. Knows no names or functions.",
)


@server.tool(title="Calculate", hints={"readOnlyHint": True})
def calculate(expression: Annotated[str, Field(description="Such as (1 + 2) * 3 ** 2 / 4")]) -> Calculated:
    """Calculates an expression of numbers with + - * / // % ** and parentheses, as Python does."""
    try:
        return {"expression": expression, "result": _finite(_value(_parsed(expression)))}
    except ZeroDivisionError:
        raise ToolError("Division by zero") from None
    except OverflowError:
        raise ToolError(_TOO_LARGE) from None


_TOO_LARGE: Final = f"Too large: whole numbers may have {BITS} bits on the way, and a result is less than 1.8e308"


def _parsed(expression: str) -> ast.expr:
    if len(expression) > CHARACTERS:
        raise ToolError(f"Too long: {len(expression)} characters, and {CHARACTERS} are allowed")
    other = _OTHER.search(expression)
    if other:
        raise ToolError(f"{other[0]!r} can't be calculated: expected numbers, + - * / // % ** and parentheses")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ToolError(f"Not an expression: {error.msg}") from None
    except (MemoryError, RecursionError):  # what the parser says of its own bound on depth
        raise ToolError("Nested too deeply") from None


def _value(root: ast.expr) -> Number:
    """What it comes to, without recursion: a long sum is a deep tree. Operands are done before what is done to them."""
    todo: list[ast.expr | Callable[[list[Any]], Any]] = [root]
    values: list[Any] = []
    while todo:
        match todo.pop():
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                values.append(_bounded(number))
            case ast.UnaryOp(op, operand) if type(op) in _SIGNS:
                todo += [_unary(_SIGNS[type(op)]), operand]
            case ast.BinOp(left, op, right) if type(op) in _OPERATIONS:
                todo += [_binary(_OPERATIONS[type(op)]), right, left]
            case ast.expr():
                raise ToolError("Not an expression of numbers, + - * / // % ** and parentheses")
            case apply:
                values.append(_bounded(apply(values)))
    result: Number = values.pop()
    return result


def _unary(sign: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: sign(values.pop())


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    def apply(values: list[Any]) -> Any:
        right, left = values.pop(), values.pop()
        if operation is operator.pow:
            _check_power(left, right)
        return operation(left, right)

    return apply


def _check_power(base: Number, exponent: Number) -> None:
    """OverflowError ahead of a power that would be far too large: the one operation whose cost its operands don't
    bound."""
    if isinstance(base, int) and isinstance(exponent, int) and (base.bit_length() - 1) * exponent > BITS:
        raise OverflowError


def _bounded(number: Any) -> Number:
    if isinstance(number, complex):
        raise ToolError("The root of a negative number is no real number")
    if isinstance(number, int) and number.bit_length() > BITS:
        raise OverflowError
    bounded: Number = number
    return bounded


def _finite(result: Number) -> Number:
    """What every reader of JSON can read. OverflowError for a whole number that many would take for infinite."""
    if not math.isfinite(result):
        raise ToolError(_TOO_LARGE if math.isinf(result) else "The result is no number: infinities cancel each other")
    return result
