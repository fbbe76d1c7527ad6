"""Parsing of responses, without IO."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.errors import WireError
from gateway.wire.http1_client import ResponseParser, encode_headers

RESPONSES = {
    "sized": b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: v\r\n\r\n",
    "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    "close": b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
    "to the end": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n",
    "twice": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na" * 2,
    "broken": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
}


def parse(pieces: list[bytes]) -> tuple[object, ...]:
    parser = ResponseParser()
    parser.expect()
    body = b""
    try:
        for piece in pieces:
            parser.feed(piece)
            body += parser.take_body()
        parser.feed_eof()
    except WireError as error:
        return (type(error), str(error))
    return parser.status, parser.headers, body, parser.complete


@pytest.mark.parametrize("name", RESPONSES)
@given(data=st.data())
def test_a_response_does_not_depend_on_how_the_bytes_were_cut(name, data):
    whole = RESPONSES[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert parse([piece for piece in pieces if piece]) == parse([whole])


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=20))
def test_any_bytes_are_a_response_or_an_error(pieces):
    parse([b"HTTP/1.1 200 OK\r\n", *pieces])
    parse(pieces)


def test_repeated_headers_are_joined_and_names_are_lower_case():
    assert parse([RESPONSES["sized"]])[1] == {b"a": b"1, 2", b"content-length": b"5"}


def test_one_parser_serves_a_whole_connection():
    parser = ResponseParser()
    for name, reusable in (("sized", True), ("empty", True), ("interim", True), ("chunked", True), ("close", False)):
        parser.expect()
        parser.feed(RESPONSES[name])
        assert (parser.complete, parser.reusable) == (True, reusable)


@given(st.text(min_size=1), st.text())
def test_headers_never_break_the_framing(name, value):
    try:
        encoded = encode_headers([(name, value)])
    except (ValueError, UnicodeEncodeError):
        return
    assert encoded.count(b"\r\n") == 1
    assert b"\n" not in encoded[:-2]
    assert b"\r" not in encoded[:-2]
