"""The request decoder: what is framed, what is refused, whole and byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http1_server import END, Head, Malformed, RequestDecoder, RequestLimits, encode_chunk, encode_head

HOST = b"Host: a\r\n"
POST = b"POST /mcp HTTP/1.1\r\n" + HOST


def decoded(data: bytes, step: int = 1 << 30, limits: RequestLimits | None = None) -> list[object]:
    decoder = RequestDecoder(limits or RequestLimits())
    for at in range(0, len(data), step):
        decoder.feed(data[at : at + step])
    return list(decoder.events)


def shape(data: bytes, step: int = 1 << 30) -> list[object]:
    """Heads as (method, target), bodies joined, ends, statuses of refusals."""
    shapes: list[object] = []
    for event in decoded(data, step):
        if isinstance(event, Head):
            shapes.append((event.method, event.target))
        elif isinstance(event, bytes | bytearray) and shapes and isinstance(shapes[-1], bytes):
            shapes[-1] += event
        else:
            shapes.append(event.status if isinstance(event, Malformed) else event)
    return shapes


GOOD = {
    "no body": (b"GET /mcp HTTP/1.1\r\n" + HOST + b"\r\n", [("GET", b"/mcp"), END]),
    "a body of known length": (POST + b"Content-Length: 3\r\n\r\nabc", [("POST", b"/mcp"), b"abc", END]),
    "chunks": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nX-Trailer: 1\r\n\r\n",
        [("POST", b"/mcp"), b"abc", END],
    ),
    "two in a row": (
        b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\nGET /2 HTTP/1.1\r\n" + HOST + b"\r\n",
        [("GET", b"/1"), END, ("GET", b"/2"), END],
    ),
    "empty lines before": (b"\r\n\r\nGET /1 HTTP/1.1\r\n" + HOST + b"\r\n", [("GET", b"/1"), END]),
    "HTTP/1.0 without a Host": (b"GET /1 HTTP/1.0\r\n\r\n", [("GET", b"/1"), END]),
    "an offer of h2c, which is ignored": (
        b"GET /1 HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: %%%\r\n"
        + HOST
        + b"\r\nGET /2 HTTP/1.1\r\n"
        + HOST
        + b"\r\n",
        [("GET", b"/1"), END, ("GET", b"/2"), END],
    ),
    "an offer of h2c with a body": (
        POST
        + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nabGET /2 HTTP/1.1\r\n"
        + HOST
        + b"\r\n",
        [("POST", b"/mcp"), b"ab", END, ("GET", b"/2"), END],
    ),
    "an offer of h2c with chunks": (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        [("POST", b"/mcp"), b"ab", END],
    ),
}

BAD = {
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\nab",
    "a signed length": POST + b"Content-Length: +2\r\n\r\nab",
    "a length beyond all bounds": POST + b"Content-Length: 99999999999999999999\r\n\r\nab",
    "an empty length": POST + b"Content-Length:\r\n\r\nab",
    "a length before a coding": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding before a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding that is not chunked": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding that only looks chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "gzip inside chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 2\r\n\r\nab",
    "a folded header": POST + b"X-A: b\r\n c\r\n\r\n",
    "a bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare LF between headers": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare CR in a value": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "a NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\x00c\r\n\r\n",
    "a chunk size that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk ended by LF": POST + b"Transfer-Encoding: chunked\r\n\r\n2\nab\n0\n\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "an unknown method": b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a URL without a host": b"GET http:///mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    "a URL with a user": b"GET http://me@a/mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    "a URL of another scheme": b"GET ftp://a/mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    "a URL, and no Host": b"GET http://a/mcp HTTP/1.1\r\n\r\n",
    "a URL, and two Hosts": b"GET http://a/mcp HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "a path without a slash": b"GET mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes that are not ASCII in a URL": b"GET http://a/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes that are not ASCII in the target": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an expectation that nobody knows": POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("step", [1 << 30, 1, 3])
@pytest.mark.parametrize(("data", "expected"), GOOD.values(), ids=GOOD)
def test_good_requests_are_framed_however_they_arrive(data, expected, step):
    assert shape(data, step) == expected


def test_a_bad_request_is_refused_before_anyone_sees_it_and_byte_by_byte_too(subtests):
    for name, data in BAD.items():
        with subtests.test(name):
            [refused] = decoded(data)
            assert isinstance(refused, Malformed)
            assert 400 <= refused.status <= 505
            *_, last = decoded(data, 1)
            assert isinstance(last, Malformed)


def test_requests_before_a_bad_one_are_kept():
    events = shape(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n")
    assert events == [("GET", b"/1"), END, 400]


def test_nothing_is_read_after_a_refusal():
    decoder = RequestDecoder(RequestLimits())
    decoder.feed(b"nonsense\r\n\r\n")
    decoder.feed(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert [type(event) for event in decoder.events] == [Malformed]


def test_a_head_that_never_ends_is_refused_at_the_limit():
    decoder = RequestDecoder(RequestLimits(head=1000))
    fed = 0
    decoder.feed(b"GET / HTTP/1.1\r\nX: ")
    while not decoder.events:
        decoder.feed(b"x" * 100)
        fed += 100
    assert decoder.events[0] == Malformed(431, "The request's head is too large")
    assert fed <= 1100


@pytest.mark.parametrize(
    "extra", [b"X: " + b"x" * 1000 + b"\r\n", b"X: y\r\n" * 11], ids=["one large header", "many headers"]
)
def test_a_head_that_arrives_whole_is_measured_too(extra):
    [refused] = decoded(b"GET / HTTP/1.1\r\n" + HOST + extra + b"\r\n", limits=RequestLimits(head=1000, headers=10))
    assert refused.status == 431


def test_framing_counts_to_the_size_of_a_body():
    limits = RequestLimits(body=1000)
    events = decoded(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500, 64, limits)
    assert events[-1] == Malformed(413, "The request is too large")


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        (b"http://b:80/mcp?x=1", b"b:80", b"/mcp?x=1"),
        (b"HTTPS://B/mcp", b"B", b"/mcp"),
        (b"http://[::1]:8080/", b"[::1]:8080", b"/"),
        (b"http://b", b"b", b"/"),
        (b"http://b?x", b"b", b"/?x"),
    ],
)
def test_the_authority_of_a_url_stands_for_the_host(url, host, target):
    for version in (b"1.0", b"1.1"):
        [head, end] = decoded(b"GET %b HTTP/%b\r\nHost: a\r\nX: y\r\n\r\n" % (url, version))
        assert (head.target, head.headers, end) == (target, [(b"x", b"y"), (b"host", host)], END)


def test_header_names_are_lower_case_and_values_as_they_came():
    [head, *_] = decoded(b"GET /a%20b?c=d HTTP/1.1\r\nHOST: a\r\nX-Y: \xe9 z\r\n\r\n")
    assert head.target == b"/a%20b?c=d"
    assert head.headers == [(b"host", b"a"), (b"x-y", b"\xe9 z")]


@pytest.mark.parametrize(
    ("line", "keeps"), [(b"HTTP/1.1", True), (b"HTTP/1.0", False), (b"HTTP/1.1\r\nConnection: close", False)]
)
def test_keep_alive_follows_version_and_connection_header(line, keeps):
    [head, *_] = decoded(b"GET / " + line + b"\r\n" + HOST + b"\r\n")
    assert head.keep_alive is keeps


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_input_raises(data, step):
    decoded(data, step)
    decoded(POST + data, step)
    decoded(POST + b"Transfer-Encoding: chunked\r\n\r\n" + data, step)


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 20))
def test_bodies_come_out_as_they_went_in(bodies, step):
    data = b"".join(POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)
    expected: list[object] = []
    for body in bodies:
        expected += [("POST", b"/mcp"), *([body] if body else []), END]
    assert shape(data, step) == expected


def test_small_chunks_that_came_together_are_one_event():
    chunks = b"".join(encode_chunk(b"%d" % (n % 10)) for n in range(1000))
    head, body, end = decoded(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert isinstance(head, Head)
    assert body == b"0123456789" * 100
    assert end is END


def test_heads_and_chunks_are_encoded():
    assert encode_head(202, [(b"a", b"b")]) == b"HTTP/1.1 202 Accepted\r\na: b\r\n\r\n"
    assert encode_head(599, []) == b"HTTP/1.1 599 \r\n\r\n"
    assert encode_chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\rb", b"a\0b"])
def test_a_header_that_would_split_the_response_is_refused(value):
    with pytest.raises(ValueError, match="control character"):
        encode_head(200, [(b"x", value)])
