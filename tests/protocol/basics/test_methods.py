"""The table of methods against the schemas and against itself."""

import json
from pathlib import Path

import pytest

from actors.protocol.methods import METHODS, Kind, Sender, Treatment, known
from actors.protocol.versions import MODERN, VERSIONS

SCHEMAS = Path(__file__).parents[2] / "schema"


def in_schema(version):
    """(method, who sends it) of a revision: from the unions of what each end sends."""
    schema = json.loads((SCHEMAS / f"{version}.json").read_text())
    definitions = schema.get("$defs") or schema["definitions"]
    found = set()
    for sender in ("Client", "Server"):
        for kind in ("Request", "Notification"):
            union = definitions.get(sender + kind, {"anyOf": []})
            for entry in union.get("anyOf", [union]):
                named = definitions[entry["$ref"].rsplit("/", 1)[1]] if "$ref" in entry else entry
                method = named["properties"]["method"]["const"]
                found.add((method, sender.lower(), kind.upper()))
    return found


@pytest.mark.parametrize("version", [*VERSIONS, MODERN])
def test_the_table_has_exactly_the_methods_of_each_revision(version):
    ours = set()
    for row in METHODS.values():
        if row.is_of(version):
            senders = ("client", "server") if row.sender is Sender.BOTH else (row.sender.value,)
            if row.last_from_client is not None and row.last_from_client < version:
                senders = ("server",)
            ours |= {(row.name, sender, row.kind.name) for sender in senders}
    assert ours == in_schema(version)


@pytest.mark.parametrize("version", [*VERSIONS, MODERN])
def test_known_agrees_with_the_schema_but_for_tasks(version):
    for name, sender, kind in in_schema(version):
        row = known(name, Sender(sender), version)
        assert "tasks/" in name if row is None else row.kind.name == kind


def test_what_may_be_sent_again_or_hold_a_lease_is_as_the_spec_says():
    assert {name for name, row in METHODS.items() if row.may_ask_back} == {
        "tools/call",
        "prompts/get",
        "resources/read",
    }
    assert not METHODS["tools/call"].repeatable
    assert METHODS["resources/read"].repeatable
    assert not METHODS["sampling/createMessage"].repeatable


def test_every_list_says_where_its_items_are():
    for row in METHODS.values():
        assert (row.treatment is Treatment.MERGED) == (row.items is not None)
        assert row.name.startswith("notifications/") == (row.kind is Kind.NOTIFICATION)


def test_a_method_is_known_only_from_its_end_and_since_its_revision():
    assert known("tools/call", Sender.CLIENT, "2024-11-05") is METHODS["tools/call"]
    assert known("tools/call", Sender.SERVER, "2025-11-25") is None
    assert known("ping", Sender.SERVER, "2024-11-05") is METHODS["ping"]
    assert known("elicitation/create", Sender.SERVER, "2025-03-26") is None
    assert known("elicitation/create", Sender.SERVER, "2025-06-18") is METHODS["elicitation/create"]
    assert known("no/such", Sender.CLIENT, "2025-11-25") is None


def test_tasks_are_known_to_both_ends_of_one_revision_and_lists_of_them_to_nobody():
    names = [name for name in METHODS if "tasks/" in name]
    assert len(names) == 5
    for sender in (Sender.CLIENT, Sender.SERVER):
        for version in (*VERSIONS, MODERN):
            found = {name for name in names if known(name, sender, version) is not None}
            assert found == (set(names) - {"tasks/list"} if version == "2025-11-25" else set())


@pytest.mark.parametrize(
    "name", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "notifications/roots/list_changed"]
)
def test_what_the_era_without_sessions_removed_is_not_known_there(name):
    assert known(name, Sender.CLIENT, VERSIONS[-1]) is not None
    assert known(name, Sender.CLIENT, MODERN) is None


def test_the_methods_of_the_era_without_sessions_are_not_known_before():
    for name in ("server/discover", "subscriptions/listen"):
        assert known(name, Sender.CLIENT, MODERN) is METHODS[name]
        assert known(name, Sender.CLIENT, VERSIONS[-1]) is None
    assert known("sampling/createMessage", Sender.SERVER, MODERN) is None
    assert known("notifications/progress", Sender.SERVER, MODERN) is not None
    assert known("notifications/progress", Sender.CLIENT, MODERN) is None
