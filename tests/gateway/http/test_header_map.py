"""Headers as the actors get them."""

from gateway.http.request import header_map


def test_a_list_that_comes_in_parts_is_one_list():
    assert header_map([(b"accept", b"a/b"), (b"accept", b" c/d\t")]) == {"accept": "a/b, c/d"}


def test_a_header_of_mcp_that_comes_twice_is_unlike_any_that_comes_once():
    assert header_map([(b"mcp-name", b"a"), (b"mcp-name", b"b")]) == {"mcp-name": "a\nb"}
    assert header_map([(b"mcp-name", b"a, b")]) == {"mcp-name": "a, b"}


def test_only_spaces_and_tabs_are_taken_from_the_edges_of_a_value():
    assert header_map([(b"mcp-name", b" \ta b\xa0 ")]) == {"mcp-name": "a b\xa0"}
