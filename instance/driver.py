"""The engine thread of an instance: builds the engine, runs its loop, frees it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from alipes.instance.contract import (
    Cancel,
    Drain,
    FromInstance,
    InstanceSettings,
    MemoryMap,
    ModelReport,
    Stop,
    Submit,
    Welcome,
)
from alipes.instance.engine.protocol import Engine, EngineError, EngineFacts

EXIT_OK: Final = 0
EXIT_DEFECT: Final = 1
EXIT_REFUSED: Final = 2
"""This process cannot serve, and starting it again would not help."""

log = logging.getLogger("alipes.instance")


class Loop(Protocol):
    """The part of the engine loop that the server uses."""

    def post(self, message: Submit | Cancel | Drain | Stop | Welcome) -> None: ...

    def run(self) -> None: ...


Emit = Callable[[FromInstance], None]
Assemble = Callable[[InstanceSettings, Emit], tuple[Engine, Loop]]


def assemble(settings: InstanceSettings, emit: Emit) -> tuple[Engine, Loop]:
    """The engine that the settings name, with its scheduler and loop."""
    from alipes.instance.calibration import calibrate
    from alipes.instance.loop import EngineLoop
    from alipes.instance.scheduler.rounds import RoundScheduler

    engine = build_engine(settings)
    scheduler = RoundScheduler(settings, engine.reports, engine.host)
    for trial in calibrate(engine, settings, time.monotonic_ns):
        scheduler.learn(trial)
    return engine, EngineLoop(engine, scheduler, emit, time.monotonic_ns)


def build_engine(settings: InstanceSettings) -> Engine:
    """Raises ``EngineError`` when the settings name no engine or it cannot be built."""
    if settings.engine == "native" and settings.ranks > 1:
        from alipes.instance.engine.native.parallel.engine import ParallelEngine

        return ParallelEngine(settings)
    if settings.engine == "native":
        from alipes.instance.engine.native.engine import NativeEngine

        return NativeEngine(settings)
    if settings.engine == "fake":
        from alipes.instance.engine.fake.engine import FakeEngine

        return FakeEngine(settings)
    raise EngineError(f"instance {settings.name}: engine {settings.engine!r} is not native or fake")


@dataclass(frozen=True, slots=True)
class Ended:
    """How the engine thread ended: the exit code it calls for, and why."""

    code: int
    why: str


class EngineThread:
    """``ready`` once the engine is built; ``ended`` is set last. ``wake`` is called from the
    engine thread after either changes."""

    def __init__(
        self, settings: InstanceSettings, build: Assemble, emit: Emit, wake: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._build = build
        self._emit = emit
        self._wake = wake
        self._loop: Loop | None = None
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.reports: tuple[ModelReport, ...] = ()
        self.about = EngineFacts(MemoryMap(), {})
        self.ended: Ended | None = None

    @property
    def ready(self) -> bool:
        return self._loop is not None

    def join(self, seconds: float) -> bool:
        """Whether the thread has ended within ``seconds``."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Submit | Cancel | Drain | Stop | Welcome) -> None:
        """Hand ``message`` to the loop; before there is one, nobody can have calls here."""
        if self._loop is not None:
            self._loop.post(message)

    def _main(self) -> None:
        try:
            self.ended = self._live()
        finally:
            self._wake()

    def _live(self) -> Ended:
        try:
            engine, loop = self._build(self._settings, self._emit)
        except EngineError as error:
            return Ended(EXIT_REFUSED, str(error))
        except Exception as error:
            log.exception("%s: the engine could not be built", self._settings.name)
            return Ended(EXIT_DEFECT, f"the engine could not be built: {error!r}")
        self.reports, self.about = engine.reports, engine.about
        self._loop = loop
        self._wake()
        try:
            loop.run()
            return Ended(EXIT_OK, "the engine loop ended")
        except Exception as error:
            log.exception("%s: the engine loop failed", self._settings.name)
            return Ended(EXIT_DEFECT, f"the engine loop failed: {error!r}")
        finally:
            engine.close()
