"""Streams outlive the instance that they are on, and their clients cannot tell."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest

from .streams import Clients, Stream, streams, take_all

PACE = {"step": 0.02, "prefill_token": 0.0002}
"""Sixty tokens take above a second."""
NAMES = ("cold-0", "cold-1", "cold-2")


def kill_one(serving: Any, chance: random.Random) -> bool:
    """``kill -9`` for an instance that has calls; false if none has."""
    shown = serving.admin()["instances"]
    busy = [one["hello"]["pid"] for one in shown if one["hello"] and one["status"]["placed"]]
    if busy:
        os.kill(chance.choice(busy), signal.SIGKILL)
    return bool(busy)


async def disturbed(serving: Any, asked: list[Stream], chance: random.Random, length: int) -> Any:
    """All streams, and one kill at a moment before they have had so many characters together."""
    clients = Clients.of(serving.stack.url)
    moment = chance.randrange(length)
    try:
        taking = asyncio.ensure_future(take_all(clients, asked))
        while clients.heard < moment and not taking.done():
            await asyncio.sleep(0.005)
        killed = await asyncio.to_thread(kill_one, serving, chance)
        return killed, await taking
    finally:
        await clients.close()


async def undisturbed(serving: Any, asked: list[Stream]) -> tuple[int, list[dict[str, Any]]]:
    """How many characters there were, and the outcomes."""
    clients = Clients.of(serving.stack.url)
    try:
        outcomes = await take_all(clients, asked)
    finally:
        await clients.close()
    return clients.heard, outcomes


def metric(serving: Any, name: str) -> float:
    lines = serving.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def survive(serving: Any, moments: int) -> tuple[int, float]:
    """How many kills hit calls, and how many streams went on elsewhere."""
    chance = random.Random(12)
    asked = streams(["alpha", "beta"], serving.stack.url)
    length, expected = asyncio.run(undisturbed(serving, asked))
    hits = 0
    for moment in range(moments):
        serving.until(lambda: any_up(serving), 40)
        killed, outcomes = asyncio.run(disturbed(serving, asked, chance, length))
        hits += killed
        for stream, outcome, right in zip(asked, outcomes, expected, strict=True):
            assert outcome == right, (moment, stream.fields)
    serving.until(serving.all_up, 60)
    return hits, metric(serving, "alipes_resumed_streams_total")


def any_up(serving: Any) -> bool:
    return any(one["status"]["why"] == "ok" for one in serving.admin()["instances"])


def test_no_client_sees_that_an_instance_was_killed(serve: Any) -> None:
    gateway = {"allow_forced_tokens": True}
    with serve({name: {"fake": PACE} for name in NAMES}, gateway=gateway) as serving:
        hits, resumed = survive(serving, 2)
        assert hits > 0
        assert resumed > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("names", "kills"), [(NAMES, 40), (NAMES[:1], 10)], ids=["three", "one"])
def test_moments_of_forty_streams(serve: Any, names: tuple[str, ...], kills: int) -> None:
    """With one instance alone, what was under way goes on when it is back: up to 30 s later."""
    gateway = {"allow_forced_tokens": True}
    with serve({name: {"fake": PACE} for name in names}, gateway=gateway) as serving:
        hits, resumed = survive(serving, kills)
        print(f"{hits} of {kills} kills hit calls, {resumed:.0f} streams went on")
        assert hits >= 0.75 * kills
        assert resumed > 2.5 * kills
