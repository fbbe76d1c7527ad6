"""A picture and a sound for the demo, made by the standard library alone."""

import io
import math
import struct
import wave
import zlib


def sunset(width: int, height: int) -> bytes:
    """A PNG of a sun going down, this many pixels wide and high."""
    rows = (_row(y / height, width) for y in range(height))
    pixels = b"".join(b"\x00" + row for row in rows)  # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red green blue
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def beep(pitch: int, seconds: float, rate: int = 16_000) -> bytes:
    """A WAV of a sine tone of `pitch` hertz, faded at both ends so that it does not click."""
    count = int(seconds * rate)
    tone = (math.sin(2 * math.pi * pitch * n / rate) * min(1.0, n / 400, (count - n) / 400) for n in range(count))
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(b"".join(struct.pack("<h", int(12_000 * value)) for value in tone))
    return file.getvalue()


def _row(height: float, width: int) -> bytes:
    """A row of pixels; `height` is 0 at the top and 1 at the bottom."""
    sky = (int(40 + 200 * height), int(50 + 70 * height), int(120 - 60 * height))
    sun = (255, 220, 120)
    return bytes(part for x in range(width) for part in (sun if _in_sun(x / width, height) else sky))


def _in_sun(x: float, y: float) -> bool:
    return (x - 0.5) ** 2 + ((y - 0.7) / 1.5) ** 2 < 0.02


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
