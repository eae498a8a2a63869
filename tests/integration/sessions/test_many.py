"""Very many sessions: the gateway forgets them in time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psutil
import pytest

CONNECTIONS = 12
RETURNS = 4
"""One session in so many makes a second call."""
KEPT = 500


class Client:
    """One connection that is used again and again."""

    def __init__(self, port: int, numbers: Any) -> None:
        self._port = port
        self._numbers = numbers

    async def run(self, until: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for number in self._numbers:
            for _ in range(1 + (number % RETURNS == 0)):
                writer.write(request(number))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), head
                length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
                await reader.readexactly(int(length))
            if number >= until:
                break
        writer.close()


def request(number: int) -> bytes:
    prompt = [number % 251, number // 251 % 251, *range(70)]
    body = json.dumps({"model": "alpha", "prompt": prompt, "max_tokens": 1}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"x-session-id: session-{number}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize("sessions", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_very_many_sessions_leave_the_gateway_as_it_was(serve: Any, sessions: int) -> None:
    limits = {"sessions": KEPT}
    with serve({"cold-0": {"max_running": 64}}, gateway={"limits": limits}) as serving:
        port = int(serving.stack.url.rpartition(":")[2])
        gateway = psutil.Process(serving.stack.process.pid)
        numbers = iter(range(sessions))

        async def serve_until(last: int) -> None:
            clients = [Client(port, numbers) for _ in range(CONNECTIONS)]
            await asyncio.gather(*(client.run(last - CONNECTIONS) for client in clients))

        begin = time.monotonic()
        asyncio.run(serve_until(sessions // 4))
        warm = gateway.memory_info().rss
        asyncio.run(serve_until(sessions))
        grown = gateway.memory_info().rss - warm
        print(f"{sessions} sessions in {time.monotonic() - begin:.1f} s, grown by {grown} bytes")
        assert grown < 8 << 20
        assert serving.counter("finished") >= sessions
        assert serving.admin()["sessions"] <= KEPT
