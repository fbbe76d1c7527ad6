"""URLs as they are put on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.url import parse_url


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        ("http://x", "http://x", "/"),
        ("HTTP://X:80/a?b=c#d", "http://x", "/a?b=c"),
        ("https://x:443/", "https://x", "/"),
        ("https://x:8443/mcp", "https://x:8443", "/mcp"),
        ("http://[::1]:8080/mcp", "http://[::1]:8080", "/mcp"),
        ("http://my_service:9/mcp/", "http://my_service:9", "/mcp/"),
        ("http://bücher.example/ä b%20c", "http://xn--bcher-kva.example", "/%C3%A4%20b%20c"),
        ("http://x?key=a%2Fb", "http://x", "/?key=a%2Fb"),
        ("ws://x:80/ws", "ws://x", "/ws"),
        ("wss://x:8443/ws", "wss://x:8443", "/ws"),
    ],
)
def test_origin_and_target(text, origin, target):
    url = parse_url(text)
    assert (str(url.origin), url.target) == (origin, target)
    assert url.request_line_end.startswith(f" {target} HTTP/1.1\r\nHost: {origin.partition('://')[2]}\r\n".encode())


def test_a_unix_domain_socket_is_an_origin_on_which_the_target_is_given():
    url = parse_url("unix:/run/mcp.sock")
    assert (str(url.origin), url.target, str(url)) == ("unix:/run/mcp.sock", "/mcp", "unix:/run/mcp.sock/mcp")
    assert url.request_line_end == b" /mcp HTTP/1.1\r\nHost: localhost\r\n"
    assert parse_url("unix:///run/mcp.sock") == url
    assert parse_url("unix:/run/mcp.sock", "/ws").target == "/ws"
    assert parse_url("unix:/a?b#c").origin.host == "/a?b#c", "a path is taken as it is"


@pytest.mark.parametrize("text", ["unix:", "unix:a", "unix:./a", "unix://host/a", "unix:/a\0b", "unix:/" + "x" * 103])
def test_what_no_socket_can_be_at_is_an_error(text):
    with pytest.raises(ValueError, match="Unix domain socket"):
        parse_url(text)


@given(st.text())
def test_any_text_is_a_url_or_an_error_and_never_breaks_the_framing(text):
    for candidate in (text, f"http://{text}", f"http://x/{text}", f"unix:/{text}"):
        try:
            url = parse_url(candidate)
        except ValueError:
            continue
        assert url.request_line_end.count(b"\r\n") == 2
        assert b" " not in url.target.encode()
        assert url.request_line_end.isascii()
