"""Server-sent events in both directions."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol import sse
from actors.protocol.sse import SseDecoder, SseEvent, SseTooLargeError

LIMIT = 1_000_000


def decode(data, limit=LIMIT):
    return SseDecoder(limit).feed(data)


def test_a_message_is_one_data_line_with_its_id():
    assert sse.encode_event(b'{"a":1}', "p3:1-5") == b'id: p3:1-5\ndata: {"a":1}\n\n'
    assert sse.encode_event(b"x") == b"data: x\n\n"
    assert sse.encode_event(b"x", "i", 100, "endpoint") == b"event: endpoint\nid: i\nretry: 100\ndata: x\n\n"


def test_a_priming_event_has_an_id_and_empty_data():
    assert sse.encode_event(b"", "p1:1-0") == b"id: p1:1-0\ndata: \n\n"
    assert decode(sse.encode_event(b"", "p1:1-0", 500)) == [SseEvent(b"", "p1:1-0", "message", 500)]


def test_a_retry_stands_alone():
    assert decode(sse.encode_retry(250)) == [SseEvent(retry=250)]


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b"])
def test_an_id_or_name_that_would_break_the_framing_is_refused(bad):
    for call in (lambda: sse.encode_event(b"", bad), lambda: sse.encode_event(b"", "i", event=bad)):
        with pytest.raises(ValueError, match="SSE field"):
            call()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_kind_of_line_end_is_understood(end):
    stream = end.join([b": hi", b"event: e", b"id: 1", b"data: a", b"data:b", b"", b"data", b"", b""])
    assert decode(stream) == [SseEvent(b"a\nb", "1", "e"), SseEvent(b"")]


def test_only_one_space_after_the_colon_belongs_to_the_syntax():
    assert decode(b"data:  a \n\n") == [SseEvent(b" a ")]
    assert decode(b"data:a:b\n\n") == [SseEvent(b"a:b")]


def test_a_byte_order_mark_is_taken_off_the_beginning_only():
    assert decode(b"\xef\xbb\xbfdata: a\n\n") == [SseEvent(b"a")]
    assert decode(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [SseEvent(b"a")]
    assert decode(b"\xef\xbbdata: a\n\ndata: b\n\n") == [SseEvent(b"b")]


def test_an_id_alone_is_reported_so_that_it_is_learned():
    assert decode(b"id: 7\n\n") == [SseEvent(b"", "7")]
    assert decode(b"id: 7\ndata:\n\n") == [SseEvent(b"", "7")]
    assert decode(b"id:\ndata: x\n\n") == [SseEvent(b"x", "")]


def test_an_id_with_nul_is_ignored():
    assert decode(b"id: a\0b\ndata: x\n\n") == [SseEvent(b"x", None)]


@pytest.mark.parametrize(
    ("value", "retry"), [(b"100", 100), (b"0", 0), (b"1a", None), (b"-1", None), (b"", None), (b"\xb2", None)]
)
def test_retry_is_digits_only(value, retry):
    assert decode(b"retry: " + value + b"\ndata: x\n\n") == [SseEvent(b"x", None, "message", retry)]


def test_an_absurd_retry_is_cut():
    assert decode(b"retry: " + b"9" * 5000 + b"\n\n") == [SseEvent(retry=sse.RETRY_MAX)]


def test_unknown_fields_and_empty_blocks_give_nothing():
    assert decode(b"\n\n\nfoo: bar\n\nevent: x\n\n:\n\n") == []


def test_an_unfinished_event_is_not_given():
    decoder = SseDecoder(LIMIT)
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\n") == [SseEvent(b"a")]


def test_a_line_break_in_two_pieces_is_one():
    decoder = SseDecoder(LIMIT)
    assert decoder.feed(b"data: a\r\n\r") == [SseEvent(b"a")]
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: b\r") == []
    assert decoder.feed(b"\r") == [SseEvent(b"b")]


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 100, b":" + b"x" * 100, b"data: 123456789\n" * 9, b"id: " + b"x" * 100 + b"\n", b"data\n" * 40],
)
def test_an_event_or_line_beyond_the_limit_is_a_typed_error(stream):
    with pytest.raises(SseTooLargeError) as caught:
        decode(stream, 100)
    assert caught.value.limit == 100
    decoder = SseDecoder(100)
    with pytest.raises(SseTooLargeError):
        [decoder.feed(stream[at : at + 1]) for at in range(len(stream))]


def test_events_before_the_one_that_is_too_large_are_given_first():
    decoder = SseDecoder(50)
    assert decoder.feed(b"data: a\n\ndata: " + b"x" * 100) == [SseEvent(b"a")]
    with pytest.raises(SseTooLargeError):
        decoder.feed(b"")


def test_the_limit_is_one_events_not_the_streams():
    assert len(decode(b"data: 1234567890\n\n" * 1000, 50)) == 1000


ids = st.text(st.characters(blacklist_characters="\n\r\0", blacklist_categories=["Cs"]), max_size=10)
events = st.builds(
    SseEvent,
    data=st.binary(max_size=30) | st.sampled_from([b'{"a":1}', b"", b"a\nb", b"a\r\nb"]),
    id=st.none() | ids,
    event=st.sampled_from(["message", "endpoint"]),
    retry=st.none() | st.integers(0, 10_000),
)


def normal(data):
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


@given(st.lists(events, max_size=5))
def test_what_is_encoded_is_decoded_again(wanted):
    stream = b"".join(sse.encode_event(e.data, e.id, e.retry, e.event) for e in wanted)
    expected = [SseEvent(normal(e.data), e.id, e.event, e.retry) for e in wanted]
    assert decode(stream) == expected


pieces = st.sampled_from(
    [
        b"data: x",
        b"data:",
        b"id: 7",
        b"id",
        b"event: e",
        b"retry: 5",
        b":c",
        b"\n",
        b"\r",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xff",
    ]
)


@given(st.lists(pieces | st.binary(max_size=3), max_size=20).map(b"".join), st.data())
def test_pieces_make_no_difference(stream, data):
    whole = decode(stream)
    one_by_one = SseDecoder(LIMIT)
    assert [event for at in range(len(stream)) for event in one_by_one.feed(stream[at : at + 1])] == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    cut = SseDecoder(LIMIT)
    bounds = [0, *cuts, len(stream)]
    assert [event for a, b in itertools.pairwise(bounds) for event in cut.feed(stream[a:b])] == whole


@given(st.lists(pieces | st.binary(max_size=30), max_size=20).map(b"".join), st.integers(1, 40))
def test_pieces_make_no_difference_to_the_limit(stream, limit):
    def run(chunks):
        decoder, got = SseDecoder(limit), []
        try:
            for chunk in (*chunks, b""):
                got += decoder.feed(chunk)
        except SseTooLargeError:
            return got, True
        return got, False

    assert run([stream]) == run(stream[at : at + 1] for at in range(len(stream)))
