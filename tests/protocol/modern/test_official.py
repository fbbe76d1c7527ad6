"""Headers and ladder against those of the official SDK: what one of them sends, the other accepts, and both refuse the
same. Where the gateway is stricter, the test says so."""

import json

from hypothesis import assume, given
from hypothesis import strategies as st
from mcp.shared import inbound as official
from msgspec import Raw

from actors.protocol import classify_modern, headers
from actors.protocol.classify import ModernRequest
from actors.protocol.messages import Request
from actors.protocol.meta import CAPABILITIES_KEY, VERSION_KEY
from actors.protocol.versions import MODERN


def raw(value):
    return Raw(json.dumps(value).encode())


SENTINELS = st.text(st.characters(codec="ascii"), max_size=12).map(lambda text: f"=?base64?{text}?=")
TEXTS = st.text(max_size=12) | SENTINELS


@given(TEXTS)
def test_each_reads_what_the_other_writes(value):
    assert headers.decode_value(official.encode_header_value(value)) == value
    assert official.decode_header_value(headers.encode_value(value)) == value


@given(TEXTS)
def test_both_read_the_same_in_a_legal_header(value):
    assume(all(" " <= character <= "~" for character in value) and value == value.strip(" "))
    assert headers.decode_value(value) == official.decode_header_value(value)


KEYWORDS = st.sampled_from(["properties", "items", "allOf", "type", "x-mcp-header", "$defs", "a", "b"])
SCHEMAS = st.recursive(
    st.sampled_from(["string", "integer", "number", "A", "a", "B", " ", 5, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "boolean", "object"])},
        optional={"x-mcp-header": st.sampled_from(["A", "B", "a", ""]), "items": SCHEMAS, "properties": SCHEMAS},
    ),
)


def has_tuples(value):
    """A list of `items`, as JSON Schema had it before 2020-12: the gateway looks into it, the SDK does not."""
    if isinstance(value, dict):
        return isinstance(value.get("items"), list) or any(map(has_tuples, value.values()))
    return isinstance(value, list) and any(map(has_tuples, value))


@given(SCHEMAS | st.fixed_dictionaries({"properties": FIELDS}))
def test_both_find_the_same_in_a_schema_or_both_find_it_illegal(schema):
    assume(not has_tuples(schema))
    try:
        found = {mirror.path: mirror.name for mirror in headers.of_schema(raw(schema))}
    except headers.IllegalAnnotation:
        found = None
    assert (found is None) == (official.find_invalid_x_mcp_header(schema) is not None)
    if found is not None:
        assert found == {path: f"Mcp-Param-{name}" for path, name in official.x_mcp_header_map(schema).items()}


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "x-mcp-header": "Text"},
        "whole": {"type": "integer", "x-mcp-header": "Whole"},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
        "deep": {"type": "object", "properties": {"text": {"type": "string", "x-mcp-header": "Deep"}}},
    },
}
MIRRORED = headers.of_schema(raw(SCHEMA))
SAFE = st.integers(-(2**53) + 1, 2**53 - 1)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS | st.none(),
        "whole": SAFE | st.none(),
        "flag": st.booleans() | st.none(),
        "deep": st.fixed_dictionaries({}, optional={"text": TEXTS}) | st.none() | TEXTS,
    },
)
VALUES = TEXTS | SAFE.map(str) | SAFE.map(lambda n: f"{n}.0") | st.sampled_from(["true", "false", "True"])


@given(ARGUMENTS)
def test_each_accepts_the_arguments_that_the_other_mirrors(arguments):
    body = raw({"name": "t", "arguments": arguments})
    ours = dict(headers.outbound("tools/call", body, MIRRORED))
    assert official.validate_mcp_param_headers(SCHEMA, arguments, ours) is None
    theirs = official.mcp_param_headers(official.x_mcp_header_map(SCHEMA), arguments)
    assert {name: value for name, value in ours.items() if name.startswith("Mcp-Param-")} == theirs
    assert headers.check_arguments({name.lower(): value for name, value in theirs.items()}, MIRRORED, body) is None


@given(ARGUMENTS, st.dictionaries(st.sampled_from(["text", "whole", "flag", "deep"]), VALUES))
def test_what_the_other_refuses_is_refused(arguments, said):
    found = {f"mcp-param-{name}": value for name, value in said.items()}
    theirs = official.validate_mcp_param_headers(SCHEMA, arguments, found)
    ours = headers.check_arguments(found, MIRRORED, raw({"arguments": arguments}))
    # Illegal characters cannot come over HTTP, and are looked for here only.
    legal = all(headers.decode_value(value) is not None for value in said.values())
    if theirs is not None or legal:
        assert (ours is None) == (theirs is None)


METHODS = st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list", "server/discover"])
META = st.fixed_dictionaries(
    {},
    optional={
        VERSION_KEY: st.sampled_from([MODERN, MODERN, "2099-01-01", "2025-11-25", 5]),
        CAPABILITIES_KEY: st.just({}),
    },
)


@given(
    METHODS,
    META,
    st.dictionaries(st.sampled_from(["name", "uri"]), st.sampled_from(["t", "ü"])),
    st.dictionaries(
        st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name"]),
        st.sampled_from([MODERN, "2099-01-01", "tools/call", "t", "=?base64?w7w=?="]),
    ),
)
def test_both_ladders_end_at_the_same_rung(method, meta, members, wrong):
    params = {**members, "_meta": meta}
    sent = {name.lower(): value for name, value in headers.outbound(method, raw(params))}
    version = meta.get(VERSION_KEY)
    sent |= {"mcp-protocol-version": version if isinstance(version, str) else MODERN} | wrong
    # A name in a header that is not in the body is refused here, and left to the method's own check there.
    assume(headers.NAMED_BY.get(method) in (None, *members) or "mcp-name" not in sent)
    theirs = official.classify_inbound_request({"method": method, "params": params}, headers=sent)
    ours = classify_modern.modern(Request(1, method, raw(params)), sent)
    if isinstance(theirs, official.InboundModernRoute):
        assert isinstance(ours, ModernRequest)
        return
    # A version that is no text is malformed here, whatever the header says.
    expected = -32602 if isinstance(version, int) and CAPABILITIES_KEY in meta else theirs.code
    assert ours.error.code == expected
    assert ours.status == official.ERROR_CODE_HTTP_STATUS[expected]
