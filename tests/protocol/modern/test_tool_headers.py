"""The x-mcp-header annotations of tools: found, judged, and never followed anywhere."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol.headers import MIRRORED_MAX, IllegalAnnotation, Mirrored, of_schema, of_tool

REGION = {"type": "string", "x-mcp-header": "Region"}


def schema(properties=None, **more):
    return Raw(json.dumps({"type": "object", "properties": properties or {}, **more}).encode())


def illegal(made):
    with pytest.raises(IllegalAnnotation) as caught:
        of_schema(made)
    return str(caught.value)


def test_annotations_are_found_in_order_and_in_depth():
    nested = {
        "type": "object",
        "properties": {"deep": {"type": "object", "properties": {"n": {**REGION, "type": "integer"}}}},
    }
    nested["properties"]["deep"]["properties"]["n"]["x-mcp-header"] = "Deep"
    made = schema({"region": REGION, "plain": {"type": "string"}, "options": nested})
    assert of_schema(made) == (
        Mirrored("Mcp-Param-Region", ("region",)),
        Mirrored("Mcp-Param-Deep", ("options", "deep", "n")),
    )


def test_a_tool_is_asked_by_its_input_schema(raw):
    tool = {"name": "t", "inputSchema": {"type": "object", "properties": {"region": REGION}}}
    assert of_tool(raw(tool)) == (Mirrored("Mcp-Param-Region", ("region",)),)
    assert of_tool(raw({"name": "t"})) == ()
    assert of_tool(raw({"name": "t", "outputSchema": {"items": REGION}, "inputSchema": {"type": "object"}})) == ()


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_what_has_one_spelling_can_be_mirrored(kind):
    assert of_schema(schema({"a": {"type": kind, "x-mcp-header": "A"}}))


@pytest.mark.parametrize("kind", ["number", "object", "array", "null", ["string"], ["string", "null"], None, 5])
def test_what_has_not_cannot(kind):
    assert "only a string" in illegal(schema({"a": {"type": kind, "x-mcp-header": "A"}}))
    assert "only a string" in illegal(schema({"a": {"x-mcp-header": "A"}}))


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "é", "a\r\nb", "a\n", "(x)", 5, None, ["A"], {}])
def test_a_name_must_be_a_token(name):
    assert "no header name" in illegal(schema({"a": {"type": "string", "x-mcp-header": name}}))


def test_names_are_told_apart_without_case():
    two = {"a": {"type": "string", "x-mcp-header": "Region"}, "b": {"type": "string", "x-mcp-header": "REGION"}}
    assert "twice" in illegal(schema(two))


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"x-mcp-header": "A"},
        *({keyword: REGION} for keyword in ("items", "not", "if", "then", "else", "contains", "additionalProperties")),
        *({keyword: [REGION]} for keyword in ("allOf", "anyOf", "oneOf", "prefixItems", "items")),
        *({keyword: {"x": REGION}} for keyword in ("$defs", "definitions", "patternProperties", "dependentSchemas")),
        {"items": {"properties": {"a": REGION}}},
        {"allOf": [{"properties": {"a": REGION}}]},
        {"properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}},
        {"properties": {"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": REGION}},
    ],
)
def test_an_annotation_that_no_fixed_path_leads_to_is_illegal(elsewhere):
    assert "properties" in illegal(schema(**elsewhere))


def test_data_and_names_are_no_annotations():
    made = schema(
        {
            "x-mcp-header": {"type": "number"},
            "properties": {"type": "object", "properties": {"a": {"type": "string"}}},
            "b": {"default": {"x-mcp-header": 1}, "enum": [REGION], "const": REGION, "examples": [REGION]},
        }
    )
    assert of_schema(made) == ()


def test_no_reference_is_followed():
    made = schema({"a": {"$ref": "#"}, "b": {"$ref": "https://example.com/"}, "region": REGION})
    assert [mirror.path for mirror in of_schema(made)] == [("region",)]


def test_a_schema_that_is_too_large_or_too_deep_to_check_is_reported_if_it_has_annotations():
    many = {f"p{n}": {"type": "string"} for n in range(20_000)}
    assert of_schema(schema(many)) == ()
    assert "too large" in illegal(schema({**many, "region": REGION}))
    deep = REGION
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    assert "too large" in illegal(Raw(json.dumps(deep).encode()))
    assert "cannot be read" in illegal(Raw(b'{"x-mcp-header":' + b"[" * 5000 + b"]" * 5000 + b"}"))
    crowd = {f"p{n}": {"type": "string", "x-mcp-header": f"h{n}"} for n in range(MIRRORED_MAX + 1)}
    assert "more than" in illegal(schema(crowd))


KEYWORDS = st.sampled_from(["properties", "items", "allOf", "type", "x-mcp-header", "$defs", "a", "b"])
JSON = st.recursive(
    st.sampled_from(["string", "integer", "object", "A", "B", 5, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_every_schema_has_mirrors_or_a_reason(made):
    mirrors = ()
    with contextlib.suppress(IllegalAnnotation):
        mirrors = of_schema(Raw(json.dumps(made).encode()))
    names = [mirror.name.lower() for mirror in mirrors]
    assert len(names) == len(set(names))
    for mirror in mirrors:
        place = made
        for name in mirror.path:
            place = place["properties"][name]
        assert place["type"] in ("string", "integer", "boolean")
        assert mirror.name == "Mcp-Param-" + place["x-mcp-header"]
