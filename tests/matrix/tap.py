"""Passes TCP connections on, and writes down what both ends say, byte by byte:

    tap.py FOLDER NAME=PORT:TARGET …

takes connections on 127.0.0.1:PORT to 127.0.0.1:TARGET. Nothing is changed or held back. What the client of NAME's
third connection says is in FOLDER/NAME-3.client, what it is answered in FOLDER/NAME-3.server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from pathlib import Path

CHUNK = 65536  # bytes read at once


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, record: Path) -> None:
    """Until one of them has ended; then both have."""
    with record.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            file.write(data)  # first, so that whoever has seen it finds it written
            target.write(data)
            await target.drain()
    target.close()


async def tap(folder: Path, name: str, port: int, target: int) -> None:
    numbers = itertools.count(1)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record = f"{folder}/{name}-{next(numbers)}"
        try:
            answers, asks = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            copy(reader, asks, Path(f"{record}.client")), copy(answers, writer, Path(f"{record}.server"))
        )

    await (await asyncio.start_server(connected, "127.0.0.1", port)).serve_forever()


async def main(folder: str, *taps: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for each in taps:
            name, _, ports = each.partition("=")
            port, _, target = ports.partition(":")
            tasks.create_task(tap(Path(folder), name, int(port), int(target)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
