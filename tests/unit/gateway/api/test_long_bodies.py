"""A long body, however short it was packed, leaves the loop to other calls."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
LONGEST = 0.5
"""Seconds for which nothing else may run; it was seconds."""
Staged = Callable[..., None]


async def longest_pause(work: Awaitable[Any]) -> tuple[Any, float]:
    """What comes of ``work``, and for how long at most the loop was busy with it."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        done = await work
        await asyncio.sleep(0.01)  # a pause up to the end is seen after it
        return done, longest
    finally:
        beating.cancel()


def body_of(field: str, count: int) -> bytes:
    entry = b'{"role":"user","content":"a"}'
    head = b'{"model":"hot-model","max_tokens":5,"%b":[' % field.encode()
    return head + b",".join([entry] * count) + b"]}"


@pytest.mark.parametrize(
    ("path", "field"),
    [(CHAT, "messages"), (MESSAGES, "messages"), (COUNT, "messages"), (RESPONSES, "input")],
)
def test_a_million_messages_are_refused_unread(staged: Staged, path: str, field: str) -> None:
    packed = gzip.compress(body_of(field, 1_000_000), 1)

    async def body(stage: Any) -> None:
        sent = stage.browser.post(path, packed, {"content-encoding": "gzip"})
        reply, pause = await longest_pause(sent)
        assert reply.status == 400
        error = reply.json()["error"]
        if path in (MESSAGES, COUNT):
            assert error["message"] == "prompt is too long: 1000000 tokens > 2000 maximum"
        else:
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)
            assert "maximum context length is 2000 tokens" in error["message"]
        assert pause < LONGEST

    staged(body)


def test_long_bodies_are_read_apart(staged: Staged) -> None:
    text = {"type": "text", "text": "a"}
    long = json.dumps(
        {"model": "hot-model", "messages": [{"role": "user", "content": [text] * 300_000}]}
    ).encode()
    spaces = gzip.compress(b" " * 31_000_000)

    async def body(stage: Any) -> None:
        reply, pause = await longest_pause(stage.browser.post(CHAT, long))
        assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert pause < LONGEST
        sent = stage.browser.post(CHAT, spaces, {"content-encoding": "gzip"})
        reply, pause = await longest_pause(sent)
        assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_json")
        assert pause < LONGEST

    staged(body)


def test_a_long_body_is_answered_and_its_faults_are_named(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "ok"
        said = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
        long = said | {"metadata": "x" * 2_000_000}
        assert (await stage.browser.post(CHAT, long)).status == 200
        reply = await stage.browser.post(CHAT, long | {"n": 0})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "n")
        reply = await stage.browser.post(CHAT, long | {"messages": [5]})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "messages[0]")
        reply = await stage.browser.post(CHAT, json.dumps(long).encode()[:-1])
        assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_json")
        reply = await stage.browser.post(CHAT, body_of("messages", 40_000)[:-1])
        assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_json")

    staged(body)


def test_more_than_two_codings_are_415(staged: Staged) -> None:
    packed = zlib.compress(b" " * 10_000_000, 0)
    for _ in range(12):
        packed = gzip.compress(packed, 0)
    packed = gzip.compress(gzip.compress(packed))
    coding = ",".join(["deflate", *["gzip"] * 14])

    async def body(stage: Any) -> None:
        reply = await stage.browser.post(CHAT, packed, {"content-encoding": coding})
        assert reply.status == 415
        assert "15 codings are too many" in reply.json()["error"]["message"]
        twice = gzip.compress(gzip.compress(b" " * 40_000_000))
        reply = await stage.browser.post(CHAT, twice, {"content-encoding": "gzip, identity, gzip"})
        assert reply.status == 413

    staged(body)


def test_more_ids_than_the_context_are_refused(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        sent = {"model": "hot-model", "prompt": [1] * 1_000_000}
        reply = await stage.browser.post("/v1/completions", sent)
        assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")

    staged(body)
