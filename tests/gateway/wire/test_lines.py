"""Lines out of chunks, bounded."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.lines import LineSplitter, LongLine

LIMIT = 8


def split(chunks: list[bytes]) -> tuple[list[object], object]:
    splitter = LineSplitter(LIMIT, keep=3)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines, splitter.finish()


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\r", b"\n"))), st.data())
def test_lines_do_not_depend_on_how_the_bytes_were_cut(chunks, data):
    whole = b"".join(chunks)
    expected = [line if len(line) <= LIMIT else LongLine(line[:3], len(line), line[-3:]) for line in whole.split(b"\n")]
    rest = expected.pop()
    assert split(chunks) == (expected, rest or None)


def test_byte_by_byte_is_the_same():
    text = b"one\n\nmuch too long\ntwo\nrest"
    expected = ([b"one", b"", LongLine(b"muc", 13, b"ong"), b"two"], b"rest")
    assert split([text]) == expected
    assert split([bytes([byte]) for byte in text]) == expected


def test_an_endless_line_keeps_no_more_than_its_two_ends():
    splitter = LineSplitter(LIMIT, keep=3)
    for _ in range(1000):
        splitter.feed(b"x" * 1000)
    assert len(splitter) == 6
    assert splitter.feed(b"\nnext\n") == [LongLine(b"xxx", 1_000_000, b"xxx"), b"next"]


def test_a_byte_order_mark_before_the_first_line_is_ignored():
    mark = b"\xef\xbb\xbf"
    for chunks in ([mark + b"{}\n"], [mark[:1], mark[1:] + b"{}\n"]):
        lines = LineSplitter(100)
        assert [line for chunk in chunks for line in lines.feed(chunk)] == [b"{}"]
        assert lines.feed(mark + b"{}\n") == [mark + b"{}"]
    assert split([mark + b"{}"]) == ([], b"{}")
