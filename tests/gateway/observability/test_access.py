"""The access log: its forms, and a writer that holds nobody up."""

import errno
import json
import os

import pytest
import trio

from gateway.observability import access as lines
from gateway.observability import writer as writing
from gateway.observability.access import Access, check_format, formatter
from gateway.observability.writer import DROPPED, Writer
from tests.support.harness import RecordingLog, RecordingTelemetry

ONE = Access(
    1_700_000_000.5, "POST", "/mcp", "HTTP/1.1", 200, 321, 1.5, "10.0.0.1", "alice", "abc123", "0af7", "", "curl/8"
)


def test_the_combined_form_is_that_of_apache():
    line = formatter("combined")(ONE)
    assert line == '10.0.0.1 - alice [14/Nov/2023:22:13:20 +0000] "POST /mcp HTTP/1.1" 200 321 "-" "curl/8"'


def test_json_has_every_field_that_is_known():
    found = json.loads(formatter("json")(ONE))
    assert found == {
        "event": "access",
        "time": "2023-11-14T22:13:20.500+00:00",
        "client": "10.0.0.1",
        "principal": "alice",
        "method": "POST",
        "path": "/mcp",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 321,
        "ms": 1.5,
        "session": "abc123",
        "trace": "0af7",
        "agent": "curl/8",
    }


def test_a_text_may_name_fields():
    assert check_format("{method} {status} {ms}ms {referer}") is None
    assert formatter("{method} {status} {ms}ms {referer}")(ONE) == "POST 200 1.500ms -"


@pytest.mark.parametrize(
    "text", ["", "plain", "{nothing}", "{method!r}", "{status:>9}", "{", "{method.__class__}", "{0}", "{client[0]}"]
)
def test_a_text_that_could_not_be_filled_in_is_refused(text):
    assert check_format(text)


@pytest.mark.parametrize("style", ["json", "combined", "{agent} {path}"])
def test_nothing_of_a_client_breaks_out_of_its_line(style):
    evil = Access(0.0, "POST", '/x" 200 \n\r\x1b[2J{status}', agent='"\\ \u2028 é ' + "x" * 10_000)
    line = formatter(style)(evil)
    assert line.isprintable() or style == "json"
    assert len(line.splitlines()) == 1
    assert len(line) < 2000
    if style == "json":
        json.loads(line)
    elif style == "combined":
        assert line.replace('\\"', "").count('"') == 6


async def test_a_file_that_was_moved_away_is_opened_anew(tmp_path):
    path, telemetry = tmp_path / "access.log", RecordingTelemetry()
    writer = Writer(telemetry, RecordingLog(), path)
    writer.put("one")
    await writer.flush()
    path.rename(tmp_path / "access.log.1")
    writer.put("two")
    writer.put("three")
    await writer.flush()
    writer.close()
    assert (tmp_path / "access.log.1").read_text() == "one\n"
    assert path.read_text() == "two\nthree\n"
    assert path.stat().st_mode & 0o077 == 0o040
    assert not telemetry.total(DROPPED)


async def test_lines_that_can_t_be_written_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "WAITING", 2)
    telemetry = RecordingTelemetry()
    writer = Writer(telemetry, RecordingLog(), tmp_path / "no" / "such" / "folder")
    for line in ("one", "two", "three"):
        writer.put(line)
    assert telemetry.total(DROPPED) == 1
    await writer.flush()
    assert telemetry.total(DROPPED) == 3


async def test_that_lines_can_t_be_written_is_told_before_the_first_one_and_once(tmp_path):
    telemetry, log, path = RecordingTelemetry(), RecordingLog(), tmp_path / "logs" / "access.log"
    writer = Writer(telemetry, log, path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        while not log.events("access_failed"):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not telemetry.total(DROPPED)
    for line in ("one", "two"):
        writer.put(line)
        await writer.flush()
    path.parent.mkdir()
    writer.put("three")
    await writer.flush()
    assert len(log.events("access_recovered")) == 1
    writer.close()
    assert [line["error"] for line in log.events("access_failed")] == ["No such file or directory"]
    assert (telemetry.total(DROPPED), path.read_text()) == (2, "three\n")


async def test_a_line_that_a_full_disk_has_cut_ends_before_the_next_one(tmp_path, monkeypatch):
    telemetry, path, room = RecordingTelemetry(), tmp_path / "access.log", [6]
    writer, write = Writer(telemetry, RecordingLog(), path), os.write

    def full(place, data):
        part = data[: room[0]]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(part)
        return write(place, part)

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        for line in ("one", "two", "three"):
            writer.put(line)
        await writer.flush()
    writer.put("four")
    await writer.flush()
    writer.close()
    assert path.read_text() == "one\ntw\nfour\n"
    assert telemetry.total(DROPPED) == 2


async def test_a_disk_that_stands_still_holds_up_nobody(tmp_path, monkeypatch):
    release, began = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def stuck(*_):
        trio.from_thread.run_sync(began.set, trio_token=token)
        trio.from_thread.run(release.wait, trio_token=token)
        return 0, ""

    writer = Writer(RecordingTelemetry(), RecordingLog(), tmp_path / "access.log")
    monkeypatch.setattr(writer, "_write", stuck)
    writer.put("one")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.flush)
        await began.wait()
        writer.put("two")  # at once
        release.set()


def test_every_field_is_one_of_the_value():
    assert set(lines.FIELDS) - {"time"} <= set(Access.__dataclass_fields__)
