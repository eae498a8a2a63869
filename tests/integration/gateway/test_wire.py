"""What only a real socket shows: disconnects, large bodies, chunks that leave at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"
LONG = {
    "model": "alpha",
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": 4000,
    "ignore_eos": True,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["alpha", "beta"])
def test_a_disconnect_frees_everything(stack: Any, stream: bool, model: str) -> None:
    cancelled = stack.counter("cancelled")
    raw = json.dumps(LONG | {"stream": stream, "model": model}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(stack.url).port or 0)) as connection:
        connection.sendall(head + raw)
        if stream:
            while b"content" not in connection.recv(65536):
                pass
        else:
            time.sleep(0.3)
        assert stack.live_calls() > 0
    stack.until_idle()
    assert stack.counter("cancelled") == cancelled + 1


def test_a_disconnect_during_prefill_frees_everything(stack: Any) -> None:
    cancelled = stack.counter("cancelled")
    words = [{"role": "user", "content": "one two three " * 2000}]
    raw = json.dumps(LONG | {"stream": True, "model": "beta", "messages": words}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(stack.url).port or 0)) as connection:
        connection.sendall(head + raw)
        load = {"running": 0}
        while not load["running"]:
            time.sleep(0.01)
            load = stack.instances()["cold-0"]["snapshot"]["loads"]["beta"]
        assert load["waiting_tokens"] > 0
    stack.until_idle()
    assert stack.counter("cancelled") == cancelled + 1
    for instance in stack.instances().values():
        occupancy = instance["snapshot"]["occupancy"]
        assert occupancy["held"] == occupancy["host_held"] == 0
        assert occupancy["free"] + occupancy["cached"] == occupancy["total"]


def test_a_client_that_leaves_at_once_frees_everything(stack: Any) -> None:
    raw = json.dumps(LONG | {"stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", httpx.URL(stack.url).port or 0)) as gone:
            gone.sendall(head + raw)
    stack.until_idle()


@pytest.mark.parametrize("declared", [True, False])
def test_a_40_mb_body_is_413_and_the_next_call_is_fine(stack: Any, declared: bool) -> None:
    body = b"x" * 40_000_000
    pieces = body if declared else (body[i : i + 65536] for i in range(0, len(body), 65536))
    with httpx.Client(base_url=stack.url, timeout=20) as client:
        reply = client.post(CHAT, content=pieces)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"
        assert client.post(CHAT, json=LONG | {"max_tokens": 2}).status_code == 200


def test_a_30_mb_body_is_read(stack: Any) -> None:
    fields = LONG | {"messages": [{"role": "user", "content": "x " * 15_000_000}]}
    reply = httpx.post(stack.url + CHAT, json=fields, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_chunks_leave_at_once(stack: Any) -> None:
    """Steps of 5 ms: with Nagle and delayed acknowledgements chunks come 40 ms apart."""

    async def gaps() -> list[float]:
        fields = LONG | {"stream": True, "max_tokens": 80}
        async with (
            httpx.AsyncClient(timeout=20) as client,
            client.stream("POST", stack.url + CHAT, json=fields) as reply,
        ):
            times = [time.perf_counter() async for _ in reply.aiter_bytes()]
        return sorted(b - a for a, b in itertools.pairwise(times))

    measured = asyncio.run(gaps())
    assert len(measured) > 60
    assert measured[len(measured) // 2] < 0.03


def test_many_calls_at_once(stack: Any) -> None:
    async def one(client: httpx.AsyncClient, i: int) -> int:
        fields = LONG | {"max_tokens": 5, "model": ("alpha", "beta")[i % 2], "stream": i % 3 == 0}
        reply = await client.post(stack.url + CHAT, json=fields)
        return reply.status_code

    async def all_of_them() -> list[int]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(one(client, i) for i in range(48)))

    assert asyncio.run(all_of_them()) == [200] * 48
    stack.until_idle()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_fails_live_streams_and_leaves_no_process(
    tmp_path: Path,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    stop: Any,
    number: signal.Signals,
) -> None:
    stack = start(tmp_path)
    try:
        with httpx.stream("POST", stack.url + CHAT, json=LONG | {"stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            stack.process.send_signal(number)
            deadline = time.monotonic() + 5
            while httpx.get(stack.url + "/ready").status_code != 503:
                assert time.monotonic() < deadline
            stop(stack, number)
            assert "shutting_down" in [line for line in lines if line][-1]
    finally:
        stack.discard()
