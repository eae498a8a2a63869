from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.parking import MemorySaver, NoParking, parking_for
from alipes.instance.memory.preload import LIBRARY

CPU = torch.device("cpu")


class Saver:
    """As the library is told: what it refuses ends a process."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.backup: dict[str, bool] = {}
        self.captured: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def region(self, tag: str, enable_cpu_backup: bool) -> Iterator[None]:
        self.states[tag], self.backup[tag] = "active", enable_cpu_backup
        yield

    @contextmanager
    def cuda_graph(
        self, graph: Any, pool: Any, stream: Any, capture_error_mode: str, tag: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.states[tag] = "active"
        self.captured.append((graph, tag, pool, stream))
        yield

    def pause(self, tag: str) -> None:
        assert self.states[tag] == "active"
        self.states[tag] = "paused"

    def resume(self, tag: str) -> None:
        assert self.states[tag] == "paused"
        self.states[tag] = "active"


@pytest.fixture
def saver(monkeypatch: pytest.MonkeyPatch) -> Saver:
    fake = Saver()
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    return fake


def test_a_tag_is_paused_and_resumed_once(saver: Saver) -> None:
    parking = MemorySaver(saver, CPU)
    with parking.region("graphs"), parking.region("workspace", backup=True):
        pass
    assert saver.backup == {"graphs": False, "workspace": True}
    for _ in range(2):
        parking.pause("graphs")
        assert saver.states == {"graphs": "paused", "workspace": "active"}
    for _ in range(2):
        parking.resume("graphs")
        assert saver.states == {"graphs": "active", "workspace": "active"}


def test_a_tag_without_memory_is_left_alone(saver: Saver) -> None:
    parking = MemorySaver(saver, CPU)
    parking.pause("unknown")
    parking.resume("unknown")
    assert saver.states == {}


def test_nothing_is_allocated_in_what_is_paused(saver: Saver) -> None:
    parking = MemorySaver(saver, CPU)
    with parking.capture("graph", "model", pool="pool", stream="stream"):
        pass
    assert saver.captured == [("graph", "model", "pool", "stream")]
    parking.pause("model")
    for allocate in (parking.region, lambda tag: parking.capture("graph", tag)):
        with pytest.raises(EngineError, match="model is paused: resume it"):
            allocate("model")
        with pytest.raises(EngineError, match="this one is empty"):
            allocate("")
    parking.resume("model")
    with parking.region("model"):
        pass


def test_the_device_is_waited_for_before_its_memory_goes(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.device, str]] = []
    parking = MemorySaver(saver, CPU)
    with parking.region("graphs"):
        pass
    monkeypatch.setattr(
        torch.accelerator,
        "synchronize",
        lambda device: seen.append((device, saver.states["graphs"])),
    )
    parking.pause("graphs")
    assert seen == [(CPU, "active")]


def test_nothing_is_parked_without_the_library_before_torch() -> None:
    preloaded = {"LD_PRELOAD": f"/lib/{LIBRARY}_cu13.abi3.so"}
    assert isinstance(parking_for(CPU, preloaded), NoParking)
    assert isinstance(parking_for(torch.device("cuda"), {}), NoParking)
    parking = parking_for(CPU)
    with parking.region("any"):
        kept = torch.ones(3)
    parking.pause("any")
    assert kept.tolist() == [1, 1, 1]
    parking.resume("any")


def test_the_library_is_used_where_it_was_loaded(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(torch_memory_saver=saver)
    monkeypatch.setitem(sys.modules, "torch_memory_saver", module)
    preloaded = {"LD_PRELOAD": f"/lib/{LIBRARY}_cu13.abi3.so:/lib/other.so"}
    parking = parking_for(torch.device("cuda"), preloaded)
    assert parking.kind == "memory-saver"
    with parking.region("graphs"):
        pass
    parking.pause("graphs")
    assert saver.states == {"graphs": "paused"}
