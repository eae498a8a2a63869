"""A gateway's tables and their keeper, without the rest of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from alipes.gateway.api.openai.responses.kept import Kept, Turn
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.identity import Claim
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.state.keeper import StateKeeper

LARGE = 64 << 20
IDLE = 3600


@dataclass
class Tables:
    """Names of sessions and responses are those that a test gives."""

    sessions: SessionTable = field(
        default_factory=lambda: SessionTable(1000, IDLE, Random(1).randbytes)
    )
    responses: ResponseStore = field(
        default_factory=lambda: ResponseStore(1000, 64 << 20, IDLE * 10**9)
    )

    def turn(self, name: str, prompt: int = 100) -> None:
        now, tokens = time.monotonic_ns(), np.arange(prompt, dtype=np.int32)
        call = self.sessions.begin("t", "m", Claim(name), tokens, prompt, now)
        self.sessions.finished(call, "i", np.array([1, 2], np.int32), 0, 64, now)

    def respond(self, name: str, size: int = 100, before: str = "") -> None:
        turn = Turn(self.find(before).turn if before else None, b"[1]", b"2" * size)
        now = time.monotonic_ns()
        self.responses.add("t", name, Claim(name), now, turn=turn, body=b"3" * size)

    def find(self, name: str) -> Kept:
        kept = self.responses.find("t", name, time.monotonic_ns())
        assert kept is not None
        return kept

    def knows(self, name: str) -> bool:
        return self.sessions.view("t", name, time.monotonic_ns()) is not None


@contextlib.asynccontextmanager
async def kept(
    folder: Path, max_bytes: int = LARGE, keeper: type[StateKeeper] = StateKeeper
) -> AsyncIterator[tuple[Tables, StateKeeper]]:
    """Tables that have been restored from ``folder``; they are saved when the block is left."""
    tables = Tables()
    one = keeper(folder, max_bytes, tables.sessions, tables.responses)
    await one.start()
    try:
        yield tables, one
    finally:
        one.stop()


async def flushed(keeper: StateKeeper) -> None:
    """What has changed is written, or saving has ended."""
    keeper.save()
    writer = keeper._writer
    async with asyncio.timeout(20):
        while writer is not None and not writer.idle:
            await asyncio.sleep(0.002)
