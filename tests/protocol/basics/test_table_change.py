"""What the replacement of the table means."""

from dataclasses import replace

import pytest

from actors.protocol.table import (
    LISTS,
    TOOLS,
    BackendSpec,
    Endpoint,
    HttpTarget,
    StdioTarget,
    Table,
    replaced,
    same_server,
    touched,
)

A, B = BackendSpec("a", StdioTarget("a")), BackendSpec("b", HttpTarget("https://b.test/mcp"))


def table(*specs: BackendSpec, **more: str) -> Table:
    names = tuple(spec.name for spec in specs)
    endpoints = {"": Endpoint("", "aggregate", names)} | {n: Endpoint(n, "transparent", (n,)) for n in names}
    return Table({spec.name: spec for spec in specs}, endpoints, **more)


def test_who_is_gone_or_another_server_is_replaced():
    assert replaced(table(A, B), table(A)) == {"b"}
    assert replaced(table(A, B), table(replace(A, target=StdioTarget("x")), B)) == {"a"}
    assert replaced(table(A), table(replace(A, sharing="shared"))) == {"a"}
    assert replaced(table(A), table(A, B)) == set()


@pytest.mark.parametrize("other", [replace(A, timeout=5.0), replace(A, disabled_tools=("x",)), replace(A)])
def test_what_is_no_matter_of_the_connection_leaves_it(other):
    assert same_server(A, other)


def test_a_credential_makes_another_server():
    assert not same_server(B, replace(B, target=HttpTarget("https://b.test/mcp", headers=(("x", "y"),))))


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        (table(A, B), set()),
        (table(B, A), LISTS),
        (table(A), LISTS),
        (table(A, B, separator="."), LISTS),
        (table(replace(A, disabled_tools=("x",)), B), TOOLS),
        (table(replace(A, target=StdioTarget("x")), B), LISTS),
        (table(replace(A, timeout=5.0), B, digest="x"), set()),
    ],
)
def test_an_aggregate_is_touched_by_what_shows_in_its_lists(after, kinds):
    assert touched(table(A, B), after, "") == kinds


def test_an_endpoint_that_comes_or_goes_is_touched():
    assert touched(table(A, B), table(A), "b")
    assert touched(table(A), table(A, B), "b")
    assert not touched(table(A), table(A), "b")
