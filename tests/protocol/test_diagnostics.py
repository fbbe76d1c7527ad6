"""What clients may see of a failure."""

import pytest

from actors.protocol.diagnostics import Diagnostics, without_addresses


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("connect ECONNREFUSED 127.0.0.1:17312", "connect ECONNREFUSED [address]"),
        ("at http://10.0.0.7:80/mcp?x=1 it failed", "at [address] it failed"),
        ("redis://h:6379/0 is away", "[address] is away"),
        ("('127.0.0.1', 17312)", "('[address])"),
        ("[::1]:8080, ::1 and fe80::1", "[address], [address] and [address]"),
        ("getaddrinfo ENOTFOUND db-main", "getaddrinfo ENOTFOUND [address]"),
        ("no host db.internal:5432", "no host [address]"),
        ("localhost:3000 and localhost", "[address] and [address]"),
        ("cache:6379 is away", "[address] is away"),
        ("listening on port 17312", "listening on port [address]"),
        ("port=5432", "port [address]"),
    ],
)
def test_addresses_are_taken_out(text, shown):
    assert without_addresses(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        'File "/srv/server.py", line 12, in main',
        "at Object.<anonymous> (/srv/index.js:12:5)",
        "server.py:120: DeprecationWarning",
        "java.net.ConnectException: Connection refused",
        "ModuleNotFoundError: No module named 'mcp.server.stdio'",
        "2026-11-22T15:20:20Z 12:34:56 INFO version 1.2.3 of python 3.11.7",
        "exited with status 127",
    ],
)
def test_what_helps_to_mend_it_stays(text):
    assert without_addresses(text) == text


def test_clients_see_the_status_and_the_lines_and_never_the_detail():
    known = Diagnostics(401, ("at 127.0.0.1:80",), "http://127.0.0.1:80: refused")
    assert known.shown == {"status": 401, "stderr": ["at [address]"]}
    assert known.unstarted.shown == {"status": 401, "stderr": None}


@pytest.mark.parametrize("piece", ["a:", "1.", "a.", "a-", "[", ":", "http", "port ", "0", "_a", " ", "a.b-", "://"])
def test_no_text_takes_long_to_look_at(piece):
    assert without_addresses((piece * 4096)[:4096])
