"""The table of metrics: names are contracts."""

import re

from actors.protocol.instruments import INSTRUMENTS

OPERATION = ("mcp_method_name", "gen_ai_tool_name", "error_type", "network_transport", "mcp_protocol_version")


def test_the_names_of_opentelemetry_have_its_labels():
    assert INSTRUMENTS["mcp_server_operation_duration_seconds"].labels == OPERATION
    assert INSTRUMENTS["mcp_client_operation_duration_seconds"].labels == (*OPERATION, "server")
    assert INSTRUMENTS["mcp_server_session_duration_seconds"].kind == "histogram"


def test_each_row_is_well_formed(subtests):
    for row in INSTRUMENTS.values():
        with subtests.test(row.name):
            assert re.fullmatch(r"(mcp|stagedoor)(_[a-z]+)+", row.name)
            assert row.name.endswith("_total") == (row.kind == "counter")
            assert bool(row.buckets) == (row.kind == "histogram")
            assert list(row.buckets) == sorted(set(row.buckets))
            assert row.help
            assert len(set(row.labels)) == len(row.labels)


def test_no_label_can_hold_an_id():
    assert not {"session", "session_id", "id", "principal", "uri"} & {
        label for row in INSTRUMENTS.values() for label in row.labels
    }
