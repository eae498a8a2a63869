from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from alipes.gateway.http import HttpError, HttpServer


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


def test_it_serves_from_start_to_stop() -> None:
    async def body() -> None:
        port = _free_port()
        server = HttpServer(_hello, "127.0.0.1", port)
        await server.start()
        assert (await _get(port)).endswith(b"hello")
        await server.stop()
        with pytest.raises(OSError, match=r"refused|reset|failed"):
            await _get(port)

    asyncio.run(body())


def test_a_taken_port_is_refused_with_a_remedy() -> None:
    async def body() -> None:
        port = _free_port()
        server = HttpServer(_hello, "127.0.0.1", port)
        await server.start()
        with pytest.raises(HttpError, match=r"cannot listen on 127\.0\.0\.1.*gateway\.port"):
            await HttpServer(_hello, "127.0.0.1", port).start()
        await server.stop()

    asyncio.run(body())


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def body() -> None:
        port = _free_port()
        gone = asyncio.Event()

        async def flood(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(64):
                chunk = {"type": "http.response.body", "body": bytes(1 << 18), "more_body": True}
                await send(chunk)
            assert (await receive())["type"] == "http.disconnect"
            gone.set()
            await send({"type": "http.response.body", "body": b""})

        server = HttpServer(flood, "127.0.0.1", port, unread=0.5)
        await server.start()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(gone.wait(), 10)
        await server.stop()

    asyncio.run(body())
