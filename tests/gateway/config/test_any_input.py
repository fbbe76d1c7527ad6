"""Whatever a file says, it is loaded or refused with problems: nothing else comes out."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, Loaded, Settings, advice
from gateway.config.document import Document
from gateway.config.loading import known_keys, settings_from
from gateway.config.reference import tables
from gateway.native import Server

WORD = "pins"
"""At a server it is a word."""
OF_SERVERS = [name for name in known_keys(("mcpServers", "a")) if name in tables() and name != WORD]
LISTS = ("policy", "policyTests")
SECTIONS = [name for name in known_keys(("gateway",)) if name in tables() and name not in LISTS]
WORDS = st.sampled_from(
    ["", "a", "b", "x y", "${V}", "${GONE:-b}", "${GONE}", "127.0.0.1:80", "http://h/mcp", "stdio", "sse"]
)
LEAVES = st.none() | st.booleans() | st.integers(-1, 5) | st.floats() | WORDS
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(WORDS, LEAVES, max_size=3)
SERVER_KEYS = st.sampled_from([*known_keys(("mcpServers", "a")), "comand"])
PARTS = VALUES | st.dictionaries(
    st.sampled_from(sorted({key for name in OF_SERVERS for key in known_keys(("mcpServers", "a", name))})), VALUES
)
SERVERS = st.dictionaries(
    st.sampled_from(["a", "b", "x y", ""]), VALUES | st.dictionaries(SERVER_KEYS, PARTS, max_size=4)
)
GATEWAYS = st.fixed_dictionaries(
    {},
    optional={
        **{key: VALUES for key in known_keys(("gateway",)) if key not in SECTIONS},
        **{
            name: VALUES | st.dictionaries(st.sampled_from([*known_keys(("gateway", name)), "q"]), VALUES, max_size=3)
            for name in SECTIONS
        },
        **{
            name: VALUES
            | st.lists(
                st.dictionaries(
                    st.sampled_from([*known_keys(("gateway", name, 0)), "q"]),
                    VALUES | st.lists(st.sampled_from(["a:*", "a:b", "b:[z-a]", "resource:a:x:..", "*:*"]), max_size=2),
                    max_size=4,
                ),
                max_size=2,
            )
            for name in LISTS
        },
    },
)
FILES = st.fixed_dictionaries(
    {}, optional={"mcpServers": VALUES | SERVERS, "servers": SERVERS, "gateway": VALUES | GATEWAYS, "inputs": VALUES}
)


@given(FILES)
def test_any_file_is_loaded_or_refused_with_problems(data: dict[str, Any]) -> None:
    document = Document(data, {}, "f", Path("/"))
    found = outcome(document)
    if isinstance(found, ConfigError):
        assert found.problems
        assert all(str(problem).startswith("f: ") for problem in found.problems)
    else:
        names = set(found.table.backends)
        assert found.table.endpoints[""].backends == tuple(found.table.backends)
        assert all(names.issuperset(endpoint.backends) for endpoint in found.table.endpoints.values())
        advice(Loaded(found, document))


def outcome(document: Document) -> Settings | ConfigError:
    try:
        return settings_from(document, {"V": "v"}, resolve=Server)
    except ConfigError as error:
        return error
