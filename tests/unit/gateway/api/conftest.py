"""The application over a scripted fleet: no process, no socket, no clock but the loop's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from alipes.gateway.api.routes import build_app, build_web
from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.events import CallFailure, FailureKind
from alipes.gateway.config import (
    Cluster,
    GatewaySettings,
    InstanceEntry,
    ModelEntry,
)
from alipes.gateway.conversation.message import Conversation, shown, shown_tool
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.reply.deltas import Delta, TextDelta, ToolArguments, ToolEnd, ToolStart
from alipes.gateway.text.rules import Wish
from alipes.instance.contract import (
    PROTOCOL,
    Cancel,
    Counters,
    Drawn,
    Estimate,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    RandomWeights,
    Snapshot,
    Started,
    Submit,
    Targets,
    ToInstance,
    Tokens,
    TopLogprob,
)

CONTEXT = 2000
STOP_ID = 0
PROMPT_CACHED = 3


class LetterText:
    """A text side whose tokens are characters; id 0 is the stop token."""

    context = CONTEXT
    vocab_size = 0x3000
    stop_ids = (STOP_ID,)

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Any] = []
        self.tenants: list[str] = []
        self.wishes: list[Wish] = []

    async def chat(self, conversation: Conversation, tenant: str = "") -> Any:
        messages = [shown(message) for message in conversation.messages]
        tools = [shown_tool(tool) for tool in conversation.tools] or None
        self.seen.append((messages, tools))
        self.tenants.append(tenant)
        return await self.text("".join(f"{m['role']}:{m['content']}\n" for m in messages))

    async def text(self, prompt: str) -> Any:
        ids = np.array([ord(c) for c in prompt], np.int32)
        return SimpleNamespace(tokens=ids, reused=0, stem=len(ids), opened=False)

    async def grammar(self, wish: Wish) -> str:
        """The names of the functions; one that is called ``wrong`` has a schema that is none."""
        self.wishes.append(wish)
        names = [function.name for function in wish.functions]
        if "wrong" in names:
            raise TextError("", "cannot be made a grammar", "unsupported")
        return ",".join(names) or "json"

    def decoder(self) -> Any:
        return SimpleNamespace(
            push=lambda ids: "".join(map(chr, ids)),
            finish=lambda: "",
        )

    def piece(self, token: int) -> tuple[str, bytes]:
        return chr(token), chr(token).encode()

    def output(self, tools: Any, opened: bool = False) -> LetterParser:
        return LetterParser(tools)


class LetterParser:
    """``{name|arguments}`` is a tool call, streamed letter by letter, where tools are given."""

    def __init__(self, tools: list[Any] | None) -> None:
        self._tools = tools
        self._name: str | None = None
        self._in_arguments = False
        self._arguments = ""
        self._count = -1

    def push(self, text: str) -> list[Delta]:
        if not self._tools:
            return [TextDelta(text)]
        return [delta for letter in text for delta in self._letter(letter)]

    def _letter(self, letter: str) -> list[Delta]:
        if self._in_arguments:
            if letter == ")":
                self._in_arguments, self._name = False, None
                return [ToolEnd(self._count, self._whole())]
            self._arguments += letter
            return [ToolArguments(self._count, letter)]
        if self._name is None:
            if letter == "(":
                self._name = ""
                return []
            return [TextDelta(letter)]
        if letter == "|":
            self._count += 1
            self._in_arguments, self._arguments = True, ""
            return [ToolStart(self._count, f"call_{self._count}", self._name)]
        self._name += letter
        return []

    def finish(self) -> list[Delta]:
        return [ToolEnd(self._count, False)] if self._in_arguments else []

    def _whole(self) -> bool:
        try:
            return isinstance(json.loads(self._arguments), dict)
        except ValueError:
            return False


class ScriptedFleet:
    """Stands for the links and every instance behind them. With ``auto`` set, each submitted
    call is answered with that text; otherwise the test plays the instance by hand."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ToInstance]] = []
        self.auto: str | None = None
        self.reachable = True
        self.dispatcher: Dispatcher
        self._version = 0

    def send(self, instance: str, message: ToInstance) -> bool:
        if not self.reachable:
            return False
        self.sent.append((instance, message))
        if isinstance(message, Submit) and self.auto is not None:
            asyncio.get_running_loop().call_soon(self.answer, instance, message, self.auto)
        return True

    def of(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    async def submitted(self, count: int = 1) -> list[tuple[str, Submit]]:
        """The first ``count`` submissions, once there are so many."""
        for _ in range(2000):
            calls = [(name, m) for name, m in self.sent if isinstance(m, Submit)]
            if len(calls) >= count:
                return calls
            await asyncio.sleep(0.001)
        raise AssertionError(f"{count} submissions expected, got {self.sent}")

    async def cancelled(self, call_id: bytes) -> None:
        for _ in range(2000):
            if any(message.call_id == call_id for message in self.of(Cancel)):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("no cancel reached the instance")

    def start(self, instance: str, call: Submit, cached: int = PROMPT_CACHED) -> None:
        self.dispatcher.message(instance, Started(call.call_id, cached, 0.0))

    def say(self, instance: str, call: Submit, text: str) -> None:
        for letter in text:
            top = tuple(
                TopLogprob(ord(letter) + i, -0.5 - i)
                for i in range(max(0, call.sampling.top_logprobs))
            )
            logprob = -0.5 if call.sampling.top_logprobs >= 0 else None
            drawn = Drawn(call.call_id, ord(letter), logprob, top)
            self.dispatcher.message(instance, Tokens(call.model, (drawn,)))

    def finish(
        self,
        instance: str,
        call: Submit,
        tokens: int,
        reason: FinishReason = FinishReason.STOP,
        prefix: bytes = b"",
    ) -> None:
        self.dispatcher.message(
            instance,
            Finished(
                call_id=call.call_id,
                reason=reason,
                stop_id=STOP_ID if reason is FinishReason.STOP else None,
                prompt_tokens=len(call.tokens) // 4,
                cached_tokens=PROMPT_CACHED,
                completion_tokens=tokens,
                queued=0.0,
                prefill=0.01,
                decode=0.02,
                prefix=prefix,
                prefix_tokens=64 if prefix else 0,
            ),
        )

    def answer(self, instance: str, call: Submit, text: str) -> None:
        self.start(instance, call)
        said = text[: call.max_tokens]
        self.say(instance, call, said)
        reason = FinishReason.STOP if len(said) == len(text) else FinishReason.LENGTH
        self.finish(instance, call, len(said), reason)

    def fail(self, instance: str, call: Submit, kind: FailureClass, reason: str = "no") -> None:
        self.dispatcher.message(instance, Failed(call.call_id, kind, reason))

    def connect(self, name: str, models: Sequence[str], kv_blocks: int = 1000) -> None:
        reports = tuple(
            ModelReport(model, "f", CONTEXT, LetterText.vocab_size, 1, 1, kv_blocks)
            for model in models
        )
        hello = Hello(
            protocol=PROTOCOL,
            name=name,
            incarnation="i",
            pool=Pool.HOT,
            engine="fake",
            device="cpu",
            block_tokens=64,
            max_running=16,
            max_waiting=256,
            prefill_chunk=512,
            targets=Targets(),
            models=reports,
            pid=1,
        )
        self.dispatcher.connected(hello)
        self.report(name, models)

    def report(self, name: str, models: Sequence[str]) -> None:
        self._version += 1
        estimate = Estimate(0.01, 1e-5, 0.0, 0.001, 0.0, 0.0, 0.1, 0.0, 0.0, 1)
        snapshot = Snapshot(
            version=self._version,
            active_model=models[0],
            phase="idle",
            round_remaining=0.0,
            round_length=0.0,
            draining=False,
            loads={model: Load() for model in models},
            estimates=dict.fromkeys(models, estimate),
            occupancy=Occupancy(1000, 1000, 0, 0, 0, 0),
            counters=Counters(deadline_risk={models[0]: 2}),
        )
        self.dispatcher.message(name, snapshot)


class Reply:
    """One response as it comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.complete = False
        self._news = asyncio.Event()

    async def take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            self.chunks.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        self._news.set()

    async def until(self, seen: Callable[[Reply], bool]) -> None:
        while not seen(self):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 5)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Data of all events, ``[DONE]`` as a string, comments left out."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


class Browser:
    """Drives the ASGI callable."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.leave = asyncio.Event()

    def open(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: dict[str, str] | None = None,
    ) -> tuple[Reply, asyncio.Task[None]]:
        """Start a request; set ``leave`` to disconnect."""
        reply = Reply()
        chunks = [body] if isinstance(body, bytes) else list(body)
        sent = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": sent,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }

        async def receive() -> Any:
            if chunks:
                chunk = chunks.pop(0)
                return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}
            await self.leave.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(self._app(scope, receive, reply.take))
        return reply, task

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._complete("POST", path, raw, headers)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return await self._complete("GET", path, b"", headers)

    async def _complete(
        self, method: str, path: str, raw: bytes, headers: dict[str, str] | None
    ) -> Reply:
        reply, task = self.open(method, path, raw, headers)
        await asyncio.wait_for(task, 10)
        assert reply.complete
        return reply


class Stage:
    """Everything a test of the application needs."""

    def __init__(self, settings: GatewaySettings, aliases: dict[str, str]) -> None:
        models = ("hot-model", "cold-model")
        entry = ModelEntry(RandomWeights("llama", "tiny"))
        self.cluster = Cluster(
            models=dict.fromkeys(models, entry),
            instances={
                "hot-0": InstanceEntry(Pool.HOT, ("hot-model",)),
                "hot-1": InstanceEntry(Pool.HOT, ("hot-model",)),
                "cold-0": InstanceEntry(Pool.COLD, ("cold-model",)),
            },
            gateway=settings,
            aliases=aliases,
        )
        known = {
            "hot-model": frozenset({"hot-0", "hot-1"}),
            "cold-model": frozenset({"cold-0"}),
        }
        limits = settings.limits
        self.fleet = ScriptedFleet()
        self.metrics = Metrics(models, self.cluster.instances)
        router = Router(known, RouterSettings(limits.queue_depth, limits.queue_timeout))
        self.sessions = SessionTable(limits.sessions, limits.session_idle, Random(1).randbytes)
        self.book = CallBook(router, self.sessions, Random(2).randbytes)
        watching = [self.metrics]
        self.dispatcher = Dispatcher(
            self.book, self.fleet.send, time.monotonic_ns, watching, watching
        )
        self.fleet.dispatcher = self.dispatcher
        self.texts = {name: LetterText(name) for name in models}
        self.app = build_app(self.cluster, self.texts, self.dispatcher, self.metrics)  # type: ignore[arg-type]
        self.service = self.app.state.service
        self.browser = Browser(build_web(self.app))

    def connect_all(self) -> None:
        self.fleet.connect("hot-0", ["hot-model"])
        self.fleet.connect("cold-0", ["cold-model"])

    def close(self) -> None:
        self.dispatcher.fail_all(CallFailure(FailureKind.STOPPING, "test over"))
        self.dispatcher.close()


def run(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.fixture
def staged() -> Callable[..., Any]:
    """Runs an async test body on a stage; keyword arguments are gateway settings."""

    def go(
        body: Callable[[Stage], Any],
        connect: bool = True,
        aliases: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("allow_forced_tokens", True)

        async def whole() -> None:
            stage = Stage(GatewaySettings(**settings), aliases or {})
            if connect:
                stage.connect_all()
            try:
                await body(stage)
                assert len(stage.book) == 0
                assert stage.dispatcher._listeners == {}
                assert stage.service.open_calls == 0
            finally:
                stage.close()

        run(whole())

    return go
