"""From a generation to a response: streamed as events, or whole.

Headers of a stream are sent as soon as it is known where the call runs and that the instance
took it (``GRACE`` after the placement at most), so that an error known by then is still an HTTP
status and the ``x-alipes-*`` headers are there. A call that queues longer than the keep-alive
interval gets its headers without them; from then on an error is an event in the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from alipes.gateway.api.errors import ApiError
from alipes.gateway.api.exchange import Exchange, HeaderList
from alipes.gateway.api.generation import Finish, Generation, Update
from alipes.gateway.inbox import CLIENT, ClientLeft
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)
from alipes.instance.contract import Drawn

GRACE: Final = 0.25
_PATIENCE: Final = 60.0


class StreamFormat(Protocol):
    """How a dialect writes a stream; sans-IO, every method returns bytes to send. ``silence`` says
    that there is nothing to say yet: an event, as clients time events and pass over comments."""

    def silence(self) -> bytes: ...

    def opening(self, generation: Generation) -> bytes: ...

    def update(self, update: Update) -> bytes: ...

    def closing(self, generation: Generation) -> bytes: ...

    def error(self, error: ApiError, request_id: str) -> bytes: ...


@dataclass(slots=True)
class ToolCall:
    """A whole tool call; ``arguments`` is the JSON object that the model wrote."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Collected:
    """One whole choice."""

    index: int
    parts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    tools: dict[int, ToolCall] = field(default_factory=dict)
    drawn: list[Drawn] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def thoughts(self) -> str:
        return "".join(self.thinking)

    @property
    def reason(self) -> str:
        return self.finish.reason if self.finish else ""

    def add(self, update: Update) -> None:
        for delta in update.deltas:
            self._take(delta)
        self.drawn += update.drawn
        self.finish = update.finish or self.finish

    def _take(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self.parts.append(delta.text)
            case ThinkingDelta():
                self.thinking.append(delta.text)
            case ToolStart():
                self.tools[delta.index] = ToolCall(delta.id, delta.name)
            case ToolArguments():
                self.tools[delta.index].arguments += delta.text
            case ToolEnd():
                if not delta.whole:
                    del self.tools[delta.index]


class ClientWatch:
    """Posts to the generation's inbox when the client leaves, for as long as it is entered."""

    def __init__(self, exchange: Exchange, generation: Generation) -> None:
        self._exchange = exchange
        self._inbox = generation.inbox
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        await self._exchange.disconnected()
        self._inbox.post(CLIENT, ClientLeft())


async def run(exchange: Exchange, generation: Generation, take: Callable[[Update], object]) -> None:
    """Run the generation to its end; ``take`` gets what it says. Raises ``ApiError`` or
    ``ClientGoneError``."""
    async with ClientWatch(exchange, generation):
        try:
            generation.start()
            while not generation.done():
                for update in await generation.step(_PATIENCE):
                    take(update)
        finally:
            generation.close()


async def collect(exchange: Exchange, generation: Generation) -> list[Collected]:
    """As ``run``, for all that the generation says."""
    choices = [Collected(index) for index in range(generation.job.choices)]
    await run(exchange, generation, lambda update: choices[update.index].add(update))
    return choices


async def stream(
    exchange: Exchange, generation: Generation, form: StreamFormat, keep_alive: float
) -> None:
    """Run the generation and write it as it comes; ``keep_alive`` seconds of silence at most.
    Raises ``ApiError`` only before the headers, ``ClientGoneError`` at any time."""
    async with ClientWatch(exchange, generation):
        try:
            generation.start()
            updates = await _until_settled(generation, keep_alive)
            await exchange.open_stream(placement_headers(generation))
            await exchange.write(form.opening(generation) + _join(form, updates))
            try:
                await _pump(exchange, generation, form, keep_alive)
            except ApiError as error:
                exchange.record.error = error.message
                await exchange.write(form.error(error, exchange.request_id))
        finally:
            generation.close()
    await exchange.close_stream()


def placement_headers(generation: Generation) -> HeaderList:
    """Where the call runs, and its session. Ids of sessions are plain ASCII."""
    headers: HeaderList = []
    if session := generation.claim.session:
        headers.append((b"x-alipes-session", session.encode()))
    if generation.placement is not None:
        headers.append((b"x-alipes-instance", generation.placement.instance.encode()))
        headers.append((b"x-alipes-reason", str(generation.placement.reason).encode()))
    return headers


async def _until_settled(generation: Generation, keep_alive: float) -> list[Update]:
    """Wait for the start of the call, but no longer than the client may wait for headers."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + keep_alive
    placed = False
    updates: list[Update] = []
    while not generation.begun and not generation.done():
        left = deadline - loop.time()
        if left <= 0:
            break
        updates += await generation.step(left)
        if generation.placement is not None and not placed:
            placed = True
            deadline = min(deadline, loop.time() + GRACE)
    return updates


async def _pump(
    exchange: Exchange, generation: Generation, form: StreamFormat, keep_alive: float
) -> None:
    loop = asyncio.get_running_loop()
    quiet_until = loop.time() + keep_alive
    data = b""
    while not generation.done():
        if data:
            await exchange.write(data)
            quiet_until = loop.time() + keep_alive
        data = _join(form, await generation.step(quiet_until - loop.time()))
        if not data and loop.time() >= quiet_until:
            data = form.silence()
    await exchange.write(data + form.closing(generation))


def _join(form: StreamFormat, updates: list[Update]) -> bytes:
    return b"".join([form.update(update) for update in updates])
