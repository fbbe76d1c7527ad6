"""Whatever is cancelled while it is written, the peer gets whole records."""

import ssl

import pytest
import trio
import trio.testing

from gateway.wire.streams import TlsStream
from tests.gateway.wire.test_pool import certificate
from tests.support.patience import PATIENCE


class Narrow:
    """In place of a TCP stream: takes as many bytes as there is room for."""

    def __init__(self) -> None:
        self.room = 10**9
        self.sent = bytearray()
        self._come, self._coming = trio.open_memory_channel[bytes](100)

    def give(self, data: bytes) -> None:
        self._come.send_nowait(data)

    def send_nowait(self, data: bytes | memoryview) -> int:
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    async def send_all(self, data: memoryview) -> None:
        while data:
            await self.wait_writable()
            data = data[self.send_nowait(data) :]

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.room:
            await trio.sleep(1)

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        return await self._coming.receive()


class Peer:
    """The server's side, fed by hand."""

    def __init__(self, tcp: Narrow, context: ssl.SSLContext) -> None:
        self._tcp = tcp
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def exchange(self) -> bytes:
        """Takes what was sent, and says what there is to say; what the client said."""
        self._incoming.write(bytes(self._tcp.sent))
        self._tcp.sent.clear()
        said = b""
        try:
            if self.tls.version() is None:
                self.tls.do_handshake()
            while True:
                said += self.tls.read(65536)
        except ssl.SSLWantReadError:
            pass
        if answer := self._outgoing.read():
            self._tcp.give(answer)
        return said


@pytest.fixture
async def ends(tmp_path):
    pem, private = certificate("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(pem)
    (tmp_path / "key.pem").write_bytes(private)
    ours = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    ours.post_handshake_auth = True
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.minimum_version = ssl.TLSVersion.TLSv1_3
    theirs.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    theirs.load_verify_locations(tmp_path / "cert.pem")
    theirs.verify_mode = ssl.CERT_OPTIONAL
    theirs.post_handshake_auth = True
    tcp = Narrow()
    stream, peer = TlsStream(tcp, ours, "127.0.0.1"), Peer(tcp, theirs)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.handshake)
            await trio.testing.wait_all_tasks_blocked()
            peer.exchange()
        peer.exchange()
    return tcp, stream, peer


async def send(stream: TlsStream, data: bytes) -> None:
    if stream.send_nowait(data) < len(data):
        await stream.send_all(memoryview(data))


async def test_a_record_whose_writer_was_cancelled_is_finished_by_the_next(ends, autojump_clock):
    tcp, stream, peer = ends
    tcp.room = 1000
    with trio.move_on_after(3):
        await stream.send_all(memoryview(b"a" * 50_000))
    tcp.room = 10**9
    await send(stream, b"next")
    assert peer.exchange() == b"a" * 50_000 + b"next"


@pytest.mark.parametrize("size", [10, 100_000])
async def test_an_answer_of_tls_itself_whose_reader_was_cancelled_goes_before_the_next_request(
    ends, autojump_clock, size
):
    tcp, stream, peer = ends
    with trio.move_on_after(1):  # the tickets for later connections
        await stream.receive_some(100)
    peer.tls.verify_client_post_handshake()
    peer.tls.do_handshake()
    peer.exchange()
    tcp.room = 20
    with trio.move_on_after(3) as cut:
        await stream.receive_some(100)
    assert cut.cancelled_caught
    assert len(tcp.sent) == 20, "it was in the middle of what TLS asked of it"
    tcp.room = 10**9
    await send(stream, b"x" * size)
    assert peer.exchange() == b"x" * size
    peer.tls.write(b"hello")
    peer.exchange()
    assert await stream.receive_some(100) == b"hello"
