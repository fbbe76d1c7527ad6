"""The queue, the threads and the sinks of the audit trail."""

import contextlib
import json
import os
import select
import socket
import ssl
import stat
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from actors.protocol.trail import RequestLine
from gateway.audit import journal as module
from gateway.audit.chain import Chain, signing_keys, verify
from gateway.audit.journal import Journal
from gateway.audit.sinks import BusyError, FileSink, Line, OtlpSink, SyslogSink
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE

KEY = signing_keys([b"k" * 32])[0]


class Held:
    """A sink that fails until it is let go."""

    name = "held"

    def __init__(self, failing=True):
        self.failing = failing
        self.lines = []

    def write(self, lines):
        if self.failing:
            raise OSError(28, "No space left on device")
        self.lines += lines
        return 0

    def close(self):
        self.closed = True

    @property
    def events(self):
        return [line.event for line in self.lines]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.01)


def read(path):
    lines = path.read_bytes().splitlines()
    placed = [(f"{path.name}:{number}", line) for number, line in enumerate(lines, 1)]
    verdict = verify(placed, [KEY], partial=True)
    assert verdict.good, verdict
    return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")], verdict


async def until(condition):
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


async def test_lines_come_in_order_signed_at_the_end_in_a_file_for_its_owner_alone(tmp_path):
    path = tmp_path / "audit.log"
    journal = Journal(FileSink(path), key=KEY, about={"version": "1"})
    for number in range(1000):
        journal.record("call", item=f"tool{number}")
    await journal.aclose(PATIENCE)
    lines, verdict = read(path)
    assert [line["event"] for line in lines] == ["audit.start", *["call"] * 1000, "audit.end"]
    assert [line["item"] for line in lines[1:-1]] == [f"tool{number}" for number in range(1000)]
    assert lines[0]["version"] == "1"
    [found] = verdict.chains.values()
    assert found.signed == found.lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_line_is_put_together_by_the_thread_that_writes_it(tmp_path):
    by = []

    def line():
        by.append(threading.current_thread().name)
        return {"item": "echo"}

    journal = Journal(FileSink(tmp_path / "audit.log"), key=KEY)
    journal.record_late("call", line)
    await journal.aclose(PATIENCE)
    assert by == ["audit"]
    assert [one["item"] for one in read(tmp_path / "audit.log")[0] if one["event"] == "call"] == ["echo"]


async def test_a_line_that_can_not_be_put_together_costs_no_other(tmp_path):
    journal = Journal(FileSink(tmp_path / "audit.log"), key=KEY)
    journal.record("call", item="before")
    journal.record_late("call", lambda: {"item": next(iter(()))})
    journal.record("call", item="after")
    await journal.aclose(PATIENCE)
    lines = [one for one in read(tmp_path / "audit.log")[0] if one["event"] == "call"]
    assert [(one.get("item"), one.get("unwritable")) for one in lines] == [
        ("before", None),
        (None, "StopIteration"),
        ("after", None),
    ]


async def test_processes_share_a_file(tmp_path):
    path = tmp_path / "audit.log"
    journals = [Journal(FileSink(path), key=KEY) for _ in range(3)]
    for _ in range(200):
        for journal in journals:
            journal.record("call")
            await trio.sleep(0)
    for journal in journals:
        await journal.aclose(PATIENCE)
    _, verdict = read(path)
    assert [found.lines for found in verdict.chains.values()] == [202] * 3


async def test_where_a_file_was_moved_away_a_new_one_is_begun(tmp_path):
    path = tmp_path / "audit.log"
    journal = Journal(FileSink(path), key=KEY)
    journal.record("call", item="before")
    await until(lambda: path.exists() and b"before" in path.read_bytes())
    path.rename(tmp_path / "audit.log.1")
    journal.record("call", item="behind")
    await journal.aclose(PATIENCE)
    old, new = read(tmp_path / "audit.log.1")[0], read(path)[0]
    assert ([line.get("item") for line in old], [line.get("item") for line in new]) == (
        [None, "before"],
        ["behind", None],
    )
    both = [(tmp_path / "audit.log.1").read_bytes(), path.read_bytes()]
    lines = b"".join(both).splitlines()
    assert verify([(str(number), line) for number, line in enumerate(lines)], [KEY]).good


async def test_heads_are_signed_as_time_goes_by(tmp_path):
    now = [0.0]
    sink = Held(failing=False)
    journal = Journal(sink, key=KEY, clock=lambda: now[0])
    await until(lambda: sink.events == ["audit.start"])
    told = ["audit.start"]
    for seconds, signed in ((61.0, True), (100.0, False), (122.0, True)):  # each minute, and not each line
        now[0] = seconds
        journal.record("call")
        told += ["call", "audit.head"] if signed else ["call"]
        await until(lambda: sink.events == told)  # noqa: B023 - it is over when the next one begins
    await journal.aclose(PATIENCE)


async def test_15_block_keeps_room_for_what_has_begun_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(module, "QUEUE", 10)
    monkeypatch.setattr(module, "BATCH", 1)
    sink, heard = Held(), []
    journal = Journal(sink, key=KEY, failed=heard.append)
    for _ in range(20):
        journal.record("call")
    assert journal.full
    assert not await journal.room(0.05)
    sink.failing = False
    with trio.fail_after(PATIENCE):
        assert await journal.room(PATIENCE)
    await journal.aclose(PATIENCE)
    assert sink.events == ["audit.start", *["call"] * 20, "audit.end"]
    assert heard == ["No space left on device", None]


async def test_drop_goes_on_counts_and_says_so_in_the_trail(monkeypatch):
    monkeypatch.setattr(module, "QUEUE", 10)
    sink, dropped = Held(), []
    journal = Journal(sink, key=KEY, block=False, dropped=lambda name, lines: dropped.append((name, lines)))
    for _ in range(50):
        journal.record("call")
    assert not journal.full
    assert await journal.room(0)
    sink.failing = False
    await journal.aclose(PATIENCE)
    lost = [json.loads(line.raw)["count"] for line in sink.lines if line.event == "audit.lost"]
    assert sum(lost) == sum(lines for _, lines in dropped) > 0
    assert sink.events.count("call") + sum(lost) == 50


async def test_an_end_does_not_wait_for_a_file_that_fails(monkeypatch):
    dropped = []
    journal = Journal(Held(), key=KEY, dropped=lambda name, lines: dropped.append(lines))
    journal.record("call")
    with trio.fail_after(PATIENCE):
        await journal.aclose(0.05)
    await until(lambda: sum(dropped) >= 2)


async def test_a_collector_that_hangs_holds_up_neither_the_file_nor_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "QUEUE", 100)
    gate = threading.Event()

    class Hanging(Held):
        def write(self, lines):
            gate.wait(PATIENCE)
            return 0

    dropped = []
    path = tmp_path / "audit.log"
    journal = Journal(FileSink(path), [Hanging()], key=KEY, dropped=lambda name, lines: dropped.append((name, lines)))
    for _ in range(500):
        journal.record("call")
        await trio.sleep(0.0005)
    await until(lambda: path.read_bytes().count(b'"call"') == 500)
    with trio.fail_after(PATIENCE):
        await journal.aclose(0.1)
    assert {name for name, _ in dropped} == {"held"}
    gate.set()


def test_what_a_full_disk_has_left_is_gone_on_from_with_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "audit.log"
    sink, room = FileSink(path), [45]
    write = os.write

    def scarce(file, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = write(file, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr("gateway.audit.sinks.os.write", scarce)
    lines = [Line("call", 0.0, b'{"line": %d, "more": "..."}' % number) for number in range(5)]
    for more in (0, 30, 1, 60, 10_000):
        room[0] += more
        try:
            sink.write(lines)
        except OSError:
            continue
    whole = [json.loads(line)["line"] for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert whole == list(range(5))


def test_a_process_that_has_ended_on_a_full_disk_takes_no_line_of_the_next_with_it(tmp_path):
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"line": 0}\n{"li')
    lines = [Line("call", 0.0, b'{"line": 1}')]
    FileSink(path).write(lines)
    assert path.read_bytes() == b'{"line": 0}\n{"li\n{"line": 1}\n'
    FileSink(path).write(lines)
    assert path.read_bytes().splitlines()[3:] == [b'{"line": 1}']


async def test_syslog_gets_lines_as_rfc_5424_has_them_over_datagrams(tmp_path):
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        daemon.settimeout(PATIENCE)
        sink = SyslogSink(f"unix:{path}", host="here")
        sink.write([Line("deny", 0.0, b'{"event":"deny"}'), Line("call", 0.0, b'{"event":"call"}')])
        first, second = daemon.recv(65536), daemon.recv(65536)
        sink.close()
    bom = b"\xef\xbb\xbf"
    assert (
        first == b"<84>1 1970-01-01T00:00:00.000Z here stagedoor %d deny - " % os.getpid() + bom + b'{"event":"deny"}'
    )
    assert second.startswith(b"<86>1 ")


async def test_a_daemon_that_is_slow_gets_no_line_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.audit.sinks.TIMEOUT", 0.01)
    path = str(tmp_path / "log")
    lines = [Line("call", 0.0, b'{"n":%d}' % number) for number in range(1000)]
    got = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        daemon.setblocking(False)
        sink = SyslogSink(f"unix:{path}", host="here")
        for _ in range(1000):
            try:
                assert sink.write(lines) == 0
                done = True
            except OSError:
                done = False
            with contextlib.suppress(BlockingIOError):
                while True:
                    got.append(int(daemon.recv(65536).rpartition(b":")[2][:-1]))
            if done:
                break
        sink.close()
    assert got == [*range(1000)]


def test_syslog_goes_by_udp_too():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(PATIENCE)
        sink = SyslogSink(f"udp://127.0.0.1:{daemon.getsockname()[1]}", host="here")
        assert sink.write([Line("call", 0.0, b"{}")]) == 0
        assert daemon.recv(65536).startswith(b"<86>1 ")
        sink.close()


def test_syslog_over_a_stream_counts_octets_and_loses_nothing_when_the_daemon_starts_again(monkeypatch):
    connected, connect = [], socket.create_connection
    monkeypatch.setattr(
        "gateway.audit.sinks.socket.create_connection",
        lambda *words: connected.append(connect(*words)) or connected[-1],
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        sink = SyslogSink(f"tcp://127.0.0.1:{server.getsockname()[1]}", host="here")
        for number in range(3):
            sink.write([Line("call", 0.0, b'{"n":%d}' % number)])
            peer, _ = server.accept()
            with peer:
                counted(peer, b'{"n":%d}' % number)
            # Its end has come here once it has an end of its own.
            assert select.select(connected[-1:], [], [], PATIENCE)[0]
        sink.close()


def counted(peer, line):
    peer.settimeout(PATIENCE)
    size, _, rest = peer.recv(65536).partition(b" ")
    assert len(rest) == int(size)
    assert rest.endswith(line)


def test_syslog_over_tls_goes_only_to_whom_an_authority_vouches_for(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    files = authority.issue("daemon")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    got = []

    def serve():
        for _ in range(2):
            with contextlib.suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as peer:
                for number in range(2):
                    counted(peer, b'{"n":%d}' % number)
                    got.append(number)
                    peer.sendall(b"x")  # what a daemon has no reason to say harms nothing

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        sink = SyslogSink(f"tls://127.0.0.1:{server.getsockname()[1]}", host="here")
        with pytest.raises(OSError, match="certificate verify failed"):
            sink.write([Line("call", 0.0, b"{}")])
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        for number in range(2):
            sink.write([Line("call", 0.0, b'{"n":%d}' % number)])
            deadline = time.monotonic() + PATIENCE
            while len(got) <= number and time.monotonic() < deadline:
                time.sleep(0.01)
        thread.join(PATIENCE)
        sink.close()
    assert got == [0, 1]


@pytest.fixture
def collector():
    """A collector that keeps what is posted, and answers with the statuses that a test wants."""
    got, statuses = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            status = statuses.pop(0) if statuses else 200
            self.send_response(status[0] if isinstance(status, tuple) else status)
            if isinstance(status, tuple):
                self.send_header("Retry-After", status[1])
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/logs", got, statuses
        server.shutdown()
        thread.join()


def test_a_collector_gets_log_records_and_is_asked_again_when_it_is_busy(collector):
    url, got, statuses = collector
    statuses.append(503)
    sink = OtlpSink(f"{url}?tenant=a", {"X-Key": "k"}, {"service.name": "stagedoor"})
    lines = [Line("deny", 1.5, b'{"event":"deny"}')]
    with pytest.raises(OSError, match="503"):
        sink.write(lines)
    sink.write(lines)
    path, headers, body = got[-1]
    assert (path, headers["X-Key"], headers["Content-Type"]) == ("/v1/logs?tenant=a", "k", "application/json")
    ParseDict(json.loads(body), ExportLogsServiceRequest())  # nothing that the protocol does not know
    [resource] = json.loads(body)["resourceLogs"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "stagedoor"}}]
    [record] = resource["scopeLogs"][0]["logRecords"]
    assert record["body"] == {"stringValue": '{"event":"deny"}'}
    assert (record["timeUnixNano"], record["severityText"], record["eventName"]) == ("1500000000", "WARN", "deny")


async def test_the_trace_of_a_line_is_that_of_its_log_record(collector):
    url, got, _ = collector
    ids = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
    deep = json.loads("[" * 400 + "]" * 400)
    journal = Journal(None, [OtlpSink(url, {}, {})], key=KEY)
    journal.record("deny", **ids, args={"deep": deep})
    journal.record_late("call", lambda: RequestLine(method="tools/call", outcome="answered", ms=1.0, **ids))
    journal.record("connect", outcome="connected")
    await journal.aclose(PATIENCE)
    posted = [json.loads(body)["resourceLogs"][0] for _, _, body in got]
    records = {one["eventName"]: one for posts in posted for one in posts["scopeLogs"][0]["logRecords"]}
    for event in ("deny", "call"):
        assert (records[event]["traceId"], records[event]["spanId"]) == tuple(ids.values())
    assert not {"traceId", "spanId"} & set(records["connect"])


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("7", 7.0),
        ("9" * 400, 999999999.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("", 0.0),
    ],
)
def test_a_collector_says_for_how_long_it_wants_to_be_left_alone(collector, said, after):
    url, _, statuses = collector
    statuses.append((429, said))
    with pytest.raises(BusyError, match="429") as busy:
        OtlpSink(url, {}, {}).write([Line("call", 0.0, b"{}")])
    assert busy.value.after == after


def test_a_collector_may_name_the_time_at_which_it_is_asked_again(collector):
    url, _, statuses = collector
    statuses.append((503, formatdate(time.time() + 3600, usegmt=True)))
    with pytest.raises(BusyError) as busy:
        OtlpSink(url, {}, {}).write([Line("call", 0.0, b"{}")])
    assert 0 < busy.value.after <= 3600


@pytest.mark.parametrize(("wanted", "waited"), [(0.0, module.AGAIN), (40.0, 40.0), (9e9, module.AGAIN_MAX)])
async def test_a_collector_is_left_alone_for_as_long_as_it_wants_whatever_comes_meanwhile(monkeypatch, wanted, waited):
    class Busy(Held):
        def write(self, lines):
            if self.failing:
                self.failing = False
                raise BusyError("busy", wanted)
            return super().write(lines)

    pauses = []
    monkeypatch.setattr(module, "AGAIN", 1.0)
    monkeypatch.setattr(threading.Condition, "wait_for", lambda _, over, seconds: pauses.append((over(), seconds)))
    sink = Busy()
    journal = Journal(None, [sink], key=KEY)
    journal.record("call")
    await until(lambda: "call" in sink.events)
    assert pauses == [(False, waited)], "and only its end wakes it"
    await journal.aclose(PATIENCE)


def test_a_collector_may_have_any_letters_in_its_address(collector):
    url, got, _ = collector
    assert (
        OtlpSink(f"{url}/b\u00fcro one?tenant=\u00fc%41", {"X-Key": "\u20ac"}, {}).write([Line("call", 0.0, b"{}")])
        == 0
    )
    assert [path for path, *_ in got] == ["/v1/logs/b%C3%BCro%20one?tenant=%C3%BC%41"]


@pytest.mark.parametrize("status", [400, 401, 404, 501])
def test_what_a_collector_will_never_take_is_counted_and_not_sent_again(collector, status):
    url, got, statuses = collector
    statuses.append(status)
    assert OtlpSink(url, {}, {}).write([Line("call", 0.0, b"{}")] * 3) == 3
    assert len(got) == 1


@pytest.mark.parametrize(
    ("answer", "rejected"),
    [
        (b'{"partialSuccess":{"rejectedLogRecords":"2"}}', 2),
        (b'{"partialSuccess":{"rejectedLogRecords":-5}}', 0),
        (b'{"partialSuccess":{"rejectedLogRecords":99}}', 3),
        (b'{"a":' + b"[" * 4000, 0),
    ],
)
def test_whatever_a_collector_answers_the_copies_go_on(monkeypatch, answer, rejected):
    """What it rejects is counted; its nonsense ends no thread."""
    sink = OtlpSink("http://127.0.0.1:1/v1/logs", {}, {})
    monkeypatch.setattr(sink, "_post", lambda lines: (200, answer, ""))
    assert sink.write([Line("call", 0.0, b"{}")] * 3) == rejected


def test_a_batch_that_is_too_large_for_a_collector_comes_in_halves(collector):
    url, got, statuses = collector
    statuses += [413, 200, 413, 200, 200]
    sink = OtlpSink(url, {}, {})
    lines = [Line("call", 0.0, b'{"n":%d}' % number) for number in range(3)]
    assert sink.write(lines) == 0
    assert len(got) == 5
    statuses.append(413)
    assert sink.write(lines[:1]) == 1, "one line alone is too large: it is lost and counted, and holds up no other"


def test_a_long_line_fits_into_a_datagram_and_the_copies_go_on(tmp_path):
    line = Chain("c", KEY).line("call", 0.0, {"item": "x" * 200_000})
    assert json.loads(line)["unwritable"].endswith("bytes")
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        daemon.settimeout(PATIENCE)
        sink = SyslogSink(f"unix:{path}", host="here")
        huge = Line("call", 0.0, b"x" * 4_000_000)
        assert sink.write([huge, Line("call", 0.0, b"{}")]) == 1
        assert daemon.recv(65536).endswith(b"{}")
        sink.close()


async def test_a_copy_gets_no_more_at_once_than_a_collector_takes(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    batches = []

    class Counting(Held):
        def write(self, lines):
            batches.append(sum(len(line.raw) for line in lines))
            return 0

    journal = Journal(Held(failing=False), [Counting()], key=KEY)
    for _ in range(50):
        journal.record("call", item="x" * 200)
    await journal.aclose(PATIENCE)
    assert len(batches) > 10
    assert max(batches) <= 1000


async def test_what_waits_for_a_copy_has_a_bound_in_bytes(monkeypatch):
    monkeypatch.setattr(module, "COPY_BYTES", 1000)
    dropped = []
    journal = Journal(Held(False), [Held()], key=KEY, dropped=lambda name, lines: dropped.append(lines))
    for _ in range(50):
        journal.record("call", item="x" * 200)
    await until(lambda: sum(dropped) >= 45)
    await journal.aclose(0.05)


async def test_what_strangers_cause_at_will_is_one_line_and_a_count():
    now, sink = [0.0], Held(failing=False)
    journal = Journal(sink, key=KEY, clock=lambda: now[0])
    for _ in range(1000):
        journal.record_often("authn.fail", reason="signature", ip="192.0.2.1")
    journal.record_often("authn.fail", reason="expired", ip="192.0.2.1")
    await until(lambda: sink.events.count("authn.fail") == 2)
    now[0] = 11.0
    journal.record("call")
    await until(lambda: sink.events.count("authn.fail") == 3)
    told = json.loads(sink.lines[-1].raw)
    assert (told["reason"], told["ip"], told["count"]) == ("signature", "192.0.2.1", 999)
    journal.record_often("authn.fail", reason="signature", ip="192.0.2.1")
    await until(lambda: sink.events.count("authn.fail") == 4)
    await journal.aclose(PATIENCE)
    assert sink.events.count("authn.fail") == 4


async def test_strangers_from_many_addresses_are_counted_together():
    sink = Held(failing=False)
    journal = Journal(sink, key=KEY)
    for number in range(5000):
        journal.record_often("authn.fail", reason="signature", ip=f"192.0.{number // 250}.{number % 250}")
    await journal.aclose(PATIENCE)
    lines = [json.loads(line.raw) for line in sink.lines if line.event == "authn.fail"]
    assert len(lines) == module.OFTEN_KINDS + 2
    assert sum(line.get("count", 1) for line in lines) == 5000


async def test_15_what_a_client_can_choose_makes_no_lines_without_end():
    sink = Held(failing=False)
    journal = Journal(sink, key=KEY)
    for number in range(3000):
        who = {"principal": "ann", "session": f"s{number % 7}", "rule": "policy[0]"}
        journal.record_often("deny", item=f"tool:made-up-{number}", **who)
    await journal.aclose(PATIENCE)
    lines = [json.loads(line.raw) for line in sink.lines if line.event == "deny"]
    assert len(lines) == module.OFTEN_KINDS + 2
    assert {"item", "session"}.isdisjoint(lines[-1])
    assert (lines[-1]["principal"], lines[-1]["rule"]) == ("ann", "policy[0]")
    assert sum(line.get("count", 1) for line in lines) == 3000


def test_a_digest_is_the_same_for_the_same_value_of_a_deployment():
    one, same, other = (Journal(None, key=key) for key in (KEY, KEY, signing_keys([b"o" * 32])[0]))
    assert one.digest(b"x") == same.digest(b"x") != other.digest(b"x")
    assert one.digest(b"x") != one.digest(b"y")


async def test_lines_that_come_one_by_one_are_written_in_few_batches_the_first_one_at_once(monkeypatch):
    """To wake the thread for each line costs more than the line does."""
    monkeypatch.setattr(module, "GATHER", 3600.0)
    batches = []

    class Counting(Held):
        def write(self, lines):
            batches.append([line.event for line in lines])
            return 0

    journal = Journal(Counting(), key=KEY)
    await until(lambda: batches == [["audit.start"]])
    for _ in range(module.BATCH - 1):
        journal.record("call")
    await trio.sleep(0.05)
    assert len(batches) == 1, "they gather"
    journal.record("deny")
    await until(lambda: len(batches) == 2)
    assert batches[1] == [*["call"] * (module.BATCH - 1), "deny"], "a whole batch waits for nothing"
    journal.record("call")
    await journal.aclose(PATIENCE)
    assert batches[2] == ["call", "audit.end"], "nor does the end"


def test_the_docs_say_how_long_lines_gather():
    text = (Path(__file__).parents[3] / "docs" / "audit.md").read_text()
    assert f"those of {module.GATHER * 1000:.0f} ms together" in text, "that is what a killed process may lose"
