"""Capabilities: read leniently, gated strictly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import capabilities as caps
from actors.protocol.capabilities import NOTHING, allows, bits_key, client_bits, declare, parse
from actors.protocol.methods import METHODS
from actors.protocol.versions import VERSIONS

OLD, SSE_ERA, FORMS, NEWEST = VERSIONS


def raw(value):
    return Raw(json.dumps(value).encode())


def plain(made):
    return json.loads(bytes(made))


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"5", b'"x"', b"[" * 5000 + b"]" * 5000])
def test_anything_but_an_object_declares_nothing(text):
    assert parse(Raw(text)) == NOTHING


def test_a_member_that_is_present_counts_even_when_empty():
    declared = parse(raw({"tools": {}, "logging": True, "prompts": None, "resources": False, "x": {"y": 0}}))
    assert declared.has(("tools",))
    assert declared.has(("logging",))
    assert not declared.has(("prompts",))
    assert not declared.has(("resources",))
    assert declared.has(("x", "y"))
    assert not declared.has(("logging", "deep"))


@pytest.mark.parametrize(("value", "has"), [(True, True), (False, False), ({}, False), (None, False), (1, False)])
def test_flags_must_be_true(value, has):
    assert parse(raw({"tools": {"listChanged": value}})).has(("tools", "listChanged")) is has
    assert parse(raw({"resources": {"subscribe": value}})).has(("resources", "subscribe")) is has


@pytest.mark.parametrize(
    ("elicitation", "form", "url"),
    [
        ({}, True, False),
        ({"form": {}}, True, False),
        ({"url": {}}, False, True),
        ({"form": {}, "url": {}}, True, True),
        (None, False, False),
        ({"later": {}}, True, False),
    ],
)
def test_elicitation_without_a_mode_means_form(elicitation, form, url):
    declared = parse(raw({"elicitation": elicitation}))
    assert declared.has(("elicitation", "form")) is form
    assert declared.has(("elicitation", "url")) is url


def test_the_raw_object_is_kept_with_its_unknown_members():
    declared = raw({"tools": {}, "vendor": {"a": 1.5}})
    assert parse(declared).raw is declared


def test_absence_forbids_every_method_that_has_a_gate(subtests):
    for method, row in METHODS.items():
        with subtests.test(method):
            gated = row.server_capability is not None or row.client_capability is not None
            assert allows(NOTHING, method) is not gated
            assert allows(NOTHING, row) is not gated


def test_the_declared_path_permits_the_method(subtests):
    for method, row in METHODS.items():
        with subtests.test(method):
            tree = True
            for name in reversed(row.server_capability or row.client_capability or ()):
                tree = {name: tree}
            assert allows(parse(raw(tree)), method)


def test_completion_is_older_than_its_capability():
    assert allows(NOTHING, "completion/complete", OLD)
    assert not allows(NOTHING, "completion/complete", SSE_ERA)
    assert not allows(NOTHING, "no/such/method")


def test_features_need_their_revision_and_their_declaration():
    client = raw({"sampling": {"tools": {}}, "elicitation": {"url": {}}, "roots": {"listChanged": True}})
    assert client_bits(client, NEWEST) == {"roots", "sampling", "sampling.tools", "elicit.url"}
    assert client_bits(client, FORMS) == {"roots", "sampling", "elicit.form"}, "before modes any elicitation is a form"
    assert client_bits(client, SSE_ERA) == {"roots", "sampling"}


# Bits


@pytest.mark.parametrize(
    ("declared", "by_version"),
    [
        ({}, [set(), set(), set(), set()]),
        ({"roots": {"listChanged": True}}, [{"roots"}] * 4),
        ({"sampling": {}}, [{"sampling"}] * 4),
        (
            {"sampling": {"tools": {}, "context": {}}},
            [{"sampling"}] * 3 + [{"sampling", "sampling.tools", "sampling.context"}],
        ),
        ({"elicitation": {}}, [set(), set(), {"elicit.form"}, {"elicit.form"}]),
        ({"elicitation": {"url": {}}}, [set(), set(), {"elicit.form"}, {"elicit.url"}]),
        ({"elicitation": {"form": {}, "url": {}}}, [set(), set(), {"elicit.form"}, {"elicit.form", "elicit.url"}]),
        ({"tasks": {}, "experimental": {"x": {}}}, [set()] * 4),
    ],
)
def test_bits_say_the_same_in_every_revision(declared, by_version):
    assert [client_bits(raw(declared), version) for version in VERSIONS] == [frozenset(bits) for bits in by_version]


def test_an_extension_is_a_bit_with_its_settings_in_canonical_form():
    one = client_bits(raw({"extensions": {"a.b/ui": {"z": [1], "a": {"y": 1, "x": 2}}}}), NEWEST)
    two = client_bits(raw({"extensions": {"a.b/ui": {"a": {"x": 2, "y": 1}, "z": [1]}}}), OLD)
    assert one == two == {'ext:a.b/ui={"a":{"x":2,"y":1},"z":[1]}'}
    assert bits_key(one) == bits_key(two)


def test_extensions_pass_by_allow_list_and_only_with_a_proper_id_and_size():
    declared = raw({"extensions": {"a/b": {}, "c/d": {}, "x=y": {}, "": {}, "big": {"x": "y" * 5000}}})
    assert client_bits(declared, NEWEST) == {"ext:a/b={}", "ext:c/d={}"}
    assert client_bits(declared, NEWEST, {"c/d"}) == {"ext:c/d={}"}
    assert client_bits(declared, NEWEST, ()) == frozenset()
    assert client_bits(raw({"extensions": []}), NEWEST) == frozenset()


ALL_BITS = frozenset({"roots", "sampling", "sampling.tools", "sampling.context", "elicit.form", "elicit.url"})


@given(st.sets(st.sampled_from(sorted(ALL_BITS))))
def test_what_is_declared_upstream_means_the_same_bits(bits):
    bits = frozenset(bits)
    if not bits & {"sampling"}:
        bits -= {"sampling.tools", "sampling.context"}
    assert client_bits(declare(bits), NEWEST) == bits


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_declared_upstream_is_valid_in_its_revision(version, conforms):
    for bits in (frozenset(), ALL_BITS, {"elicit.url"}, {"sampling"}):
        conforms(version, "ClientCapabilities", declare(frozenset(bits), version, roots_list_changed=True))


def test_older_backends_are_told_only_what_they_know():
    assert plain(declare(ALL_BITS, OLD)) == {"roots": {}, "sampling": {}}
    assert plain(declare(ALL_BITS, FORMS)) == {"roots": {}, "sampling": {}, "elicitation": {}}
    assert plain(declare(frozenset({"elicit.url"}), FORMS)) == {}
    assert plain(declare(frozenset({"roots"}), roots_list_changed=True)) == {"roots": {"listChanged": True}}


def test_extensions_are_bits_up_to_a_bound():
    many = {f"a/{n}": {} for n in range(caps.EXTENSIONS_MAX + 1)}
    assert len(client_bits(raw({"extensions": many}), NEWEST)) == caps.EXTENSIONS_MAX
    long = {f"a/{n}": {"x": "y" * 4000} for n in range(caps.EXTENSIONS_MAX)}
    assert sum(map(len, client_bits(raw({"extensions": long}), NEWEST))) <= caps.EXTENSIONS_BYTES


def test_extensions_are_declared_with_their_settings():
    bits = client_bits(raw({"extensions": {"a/b": {"x": "="}}}), NEWEST)
    assert plain(declare(bits)) == {"extensions": {"a/b": {"x": "="}}}


@pytest.mark.parametrize(
    ("bits", "method", "params", "code"),
    [
        (set(), "ping", {}, None),
        (set(), "sampling/createMessage", {}, -32601),
        ({"sampling"}, "sampling/createMessage", {"messages": []}, None),
        ({"sampling"}, "sampling/createMessage", {"tools": []}, -32602),
        ({"sampling"}, "sampling/createMessage", {"toolChoice": {}}, -32602),
        ({"sampling"}, "sampling/createMessage", {"messages": [{"x": "tools"}]}, None),
        ({"sampling", "sampling.tools"}, "sampling/createMessage", {"tools": []}, None),
        (set(), "roots/list", {}, -32601),
        ({"roots"}, "roots/list", {}, None),
        (set(), "elicitation/create", {}, -32601),
        ({"elicit.form"}, "elicitation/create", {"message": ""}, None),
        ({"elicit.form"}, "elicitation/create", {"mode": "form"}, None),
        ({"elicit.form"}, "elicitation/create", {"mode": "url"}, -32602),
        ({"elicit.url"}, "elicitation/create", {"message": ""}, -32602),
        ({"elicit.url"}, "elicitation/create", {"mode": "url"}, None),
        ({"elicit.url"}, "elicitation/create", {"mode": "later"}, -32602),
        (ALL_BITS, "no/such", {}, -32601),
    ],
)
def test_a_backend_may_ask_only_what_the_client_declared(bits, method, params, code):
    refusal = caps.client_refusal(frozenset(bits), method, raw(params))
    assert (refusal and refusal.code) == code


# Aggregates


def test_a_backend_that_nobody_has_asked_yet_may_have_everything():
    assert plain(caps.merge_server([], pending=True)) == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "logging": {},
        "completions": {},
    }


def test_an_aggregate_has_what_any_backend_has():
    merged = caps.merge_server(
        [raw({"tools": {}, "logging": {}}), raw({"resources": {"subscribe": True}}), Raw(b"[]"), raw({"tasks": {}})],
        pending=False,
    )
    assert plain(merged) == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "logging": {},
    }
    assert plain(caps.merge_server([raw({"prompts": {}})], pending=False)) == {"prompts": {"listChanged": True}}
    assert plain(caps.merge_server([], pending=False)) == {}


def test_extensions_and_experiments_are_merged_by_allow_list_and_the_first_settings_win():
    backends = [
        raw({"extensions": {"a/b": {"v": 1}, "c/d": {}}, "experimental": {"x": {}}}),
        raw({"extensions": {"a/b": {"v": 2}}, "experimental": {"y": {}}}),
    ]
    assert plain(caps.merge_server(backends, pending=False)) == {}
    assert plain(caps.merge_server(backends, pending=False, extensions=["a/b"], experimental=["y"])) == {
        "extensions": {"a/b": {"v": 1}},
        "experimental": {"y": {}},
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_merged_capabilities_are_valid_in_every_revision(version, conforms):
    conforms(version, "ServerCapabilities", caps.merge_server([], pending=True))


def test_a_transparent_route_shows_the_backends_own_but_for_tasks():
    own = raw({"tools": {}, "vendor": {"x": 1.50}})
    assert caps.transparent_server(own) is own
    assert plain(caps.transparent_server(raw({"tools": {}, "tasks": {"list": {}}}))) == {"tools": {}}
    assert plain(caps.transparent_server(Raw(b"[]"))) == {}


def test_the_answer_to_initialize_says_what_a_server_declared():
    assert caps.of_initialize_result(raw({"capabilities": {"tools": {}}})).has(("tools",))
    assert caps.of_initialize_result(raw({})) == NOTHING
    assert caps.of_initialize_result(Raw(b"[]")) == NOTHING
