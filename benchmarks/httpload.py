"""A raw HTTP/1.1 client that costs little itself: one connection, requests prepared as bytes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

_CONTENT = re.compile(rb'"content":\s?"[^"]')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the first byte sent to the first generated text and to the end."""

    first: float
    total: float
    status: int


def request(port: int, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """Sends one request after another over one socket."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, raw: bytes) -> Timing:
        start = time.perf_counter()
        self._writer.write(raw)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = _LENGTH.search(head)
        if length is not None:
            await self._reader.readexactly(int(length[1]))
            first = time.perf_counter()
        else:
            first = await self._chunks()
        end = time.perf_counter()
        return Timing(first - start, end - start, status)

    async def _chunks(self) -> float:
        """Read to the last chunk; the time at which the first text came."""
        first = 0.0
        while True:
            size = int(await self._reader.readline(), 16)
            data = await self._reader.readexactly(size + 2)
            if not first and _CONTENT.search(data):
                first = time.perf_counter()
            if size == 0:
                return first or time.perf_counter()


async def one_by_one(port: int, requests: Sequence[bytes]) -> list[Timing]:
    async with Connection(port) as connection:
        return [_checked(await connection.send(raw)) for raw in requests]


async def side_by_side(port: int, raw: bytes, connections: int, seconds: float) -> float:
    """Completed requests a second with so many connections that are never idle."""
    start = time.perf_counter()
    end = start + seconds

    async def worker() -> int:
        count = 0
        async with Connection(port) as connection:
            while time.perf_counter() < end:
                _checked(await connection.send(raw))
                count += 1
        return count

    counts = await asyncio.gather(*(worker() for _ in range(connections)))
    return sum(counts) / (time.perf_counter() - start)


def _checked(timing: Timing) -> Timing:
    if timing.status != 200:
        raise RuntimeError(f"status {timing.status}")
    return timing
