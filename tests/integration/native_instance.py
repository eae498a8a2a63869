"""An engine loop over the native engine in this process, and calls to try on it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alipes.instance.contract import (
    Cancel,
    Counters,
    Drawn,
    Failed,
    Finished,
    FromInstance,
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Snapshot,
    Stop,
    Submit,
    Targets,
    Tokens,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import Engine
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler.rounds import RoundScheduler

BLOCK_BYTES = 32768
WITHOUT_KV = 27_760_000
"""Device bytes of the largest tiny model in float32, with its work space."""


class Instance:
    """Over the engine that ``build`` makes; ``blocks`` are those of the largest model's KV."""

    def __init__(
        self,
        folders: dict[str, Path],
        blocks: int,
        build: Callable[[InstanceSettings], Engine] = NativeEngine,
        **changes: Any,
    ) -> None:
        models = tuple(ModelSettings(name, str(f), "float32") for name, f in folders.items())
        fields: dict[str, Any] = {"host_bytes": 1 << 24, "prefill_chunk": 512, "max_running": 16}
        settings = InstanceSettings(
            name="mix",
            pool=Pool.COLD,
            models=models,
            targets=Targets(ttft=2.0, tpot=0.1),
            endpoint="",
            device_bytes=WITHOUT_KV + blocks * BLOCK_BYTES,
            threads=1,
            **(fields | changes),
        )
        self.settings = settings
        self.engine = build(settings)
        self.drawn: dict[bytes, list[Drawn]] = {}
        self.last: dict[bytes, Finished | Failed] = {}
        self.snapshot: Snapshot | None = None
        self.news = threading.Condition()
        scheduler = RoundScheduler(settings, self.engine.reports, self.engine.host)
        self._loop = EngineLoop(self.engine, scheduler, self._emit, time.monotonic_ns)
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()

    def post(self, message: Submit | Cancel) -> None:
        self._loop.post(message)

    def until_idle(self) -> Snapshot:
        """The state once no call is left and all copies have ended, in two snapshots after the
        last call was taken in."""
        versions: set[int] = set()
        with self.news:
            while len(versions) < 2:
                assert self.news.wait(60), "the instance is stuck"
                state = self.snapshot
                if state and not (
                    state.counters.live_calls or state.occupancy.held or state.occupancy.host_held
                ):
                    versions.add(state.version)
        assert self.snapshot is not None
        return self.snapshot

    def until_ended(self, call_id: bytes) -> None:
        self.until(lambda: call_id in self.last)

    def until(self, condition: Callable[[], Any]) -> None:
        with self.news:
            assert self.news.wait_for(condition, 60), "the instance is stuck"

    def close(self) -> None:
        self._loop.post(Stop())
        self._thread.join()
        self.engine.close()

    def _emit(self, message: FromInstance) -> None:
        with self.news:
            if isinstance(message, Tokens):
                for drawn in message.drawn:
                    self.drawn.setdefault(drawn.call_id, []).append(drawn)
            elif isinstance(message, Finished | Failed):
                self.last[message.call_id] = message
            elif isinstance(message, Snapshot):
                self.snapshot = message
            self.news.notify_all()


def calls_of(rng: random.Random, models: list[str], count: int) -> list[Submit]:
    """Calls that share beginnings, some greedy, some not, with and without penalties."""
    beginnings = [[rng.randrange(49_000) for _ in range(n)] for n in (64, 130, 200)]
    calls = []
    for number in range(count):
        shared = rng.choice(beginnings)[: rng.choice((0, 64, 128, 200))]
        ids = shared + [rng.randrange(49_000) for _ in range(rng.randrange(1, 150))]
        sampling = Sampling(
            temperature=rng.choice((0.0, 0.0, 0.7)),
            top_k=20,
            seed=number,
            frequency_penalty=rng.choice((0.0, 0.5)),
            repetition_penalty=rng.choice((1.0, 1.2)),
        )
        calls.append(
            Submit(
                call_id=number.to_bytes(16, "big"),
                model=rng.choice(models),
                root=bytes(16),
                tokens=b"".join(token.to_bytes(4, "little") for token in ids),
                max_tokens=rng.choice((1, 5, 30, 90)),
                sampling=sampling,
                stop_ids=(2,),
            )
        )
    return calls


def served(instance: Instance, rng: random.Random, calls: list[Submit]) -> Counters:
    """All calls, some of them cancelled, and the totals since the instance was started."""
    for call in calls:
        instance.post(call)
        if rng.random() < 0.3:
            time.sleep(0.02)
        if rng.random() < 0.2:
            instance.post(Cancel(rng.choice(calls).call_id))
    state = instance.until_idle()
    occupancy = state.occupancy
    assert occupancy.host_used <= occupancy.host_total <= instance.settings.host_bytes
    assert occupancy.free + occupancy.cached == occupancy.total
    return state.counters
