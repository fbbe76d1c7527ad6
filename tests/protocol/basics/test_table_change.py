"""What the replacement of the table means."""

from dataclasses import replace

import pytest

from actors.protocol.table import BackendSpec, Endpoint, HttpTarget, StdioTarget, Table, replaced, same_server, touches

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
    ("after", "touched"),
    [
        (table(A, B), False),
        (table(B, A), True),
        (table(A), True),
        (table(A, B, separator="."), True),
        (table(replace(A, disabled_tools=("x",)), B), True),
        (table(replace(A, target=StdioTarget("x")), B), True),
        (table(replace(A, timeout=5.0), B, digest="x"), False),
    ],
)
def test_an_aggregate_is_touched_by_what_shows_in_its_lists(after, touched):
    assert touches(table(A, B), after, "") is touched


def test_an_endpoint_that_comes_or_goes_is_touched():
    assert touches(table(A, B), table(A), "b")
    assert touches(table(A), table(A, B), "b")
    assert not touches(table(A), table(A), "b")
