"""Switches among three models of tens of GB by path, for ``gpu_check.py``: no engine and no
checkpoints, the stager alone, over weights of noise that lie in one piece of host memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import torch
from common import Claim, at_least

from alipes.instance.engine.native.staging import (
    Stager,
    Switching,
    Weights,
    best_switching,
    device_memory,
)
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.device import pinned_buffer, unpin
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan
from alipes.replay.stats import nearest_rank

Cells = dict[str, Any]
NOISE: Final = 256 << 20
PATIENCE: Final = 30.0
SAMPLE: Final = 64


@dataclass(frozen=True, slots=True)
class Scale:
    """Three models of one, two and three times ``unit`` bytes in an arena of six; a block of
    ``row_bytes`` in each of ``layers``. Each way has ``seconds``, and three turns at least."""

    unit: int
    layers: int
    row_bytes: int
    seconds: float
    turns: int

    @property
    def models(self) -> dict[str, int]:
        return {f"{n * self.unit / 1e9:.3g} GB": n * self.unit for n in (1, 2, 3)}

    @property
    def device_bytes(self) -> int:
        return 6 * self.unit


TINY: Final = Scale(8 << 20, 4, 16 << 10, 0, 3)


def largest(seconds: float) -> Scale:
    """20, 40 and 60 GB where they fit. A block is that of 64 tokens in 8 heads of 128 in 16 bit."""
    on_device, _ = torch.cuda.mem_get_info()
    on_host = psutil.virtual_memory().available
    unit = min(20_000_000_000, int(on_device * 0.9) // 6, int(on_host * 0.7) // 3)
    return Scale(unit // PAGE * PAGE, 60, 256 << 10, seconds, 12)


@dataclass(slots=True)
class Path:
    """Switches of one kind: seconds, their bytes, and the seconds a plain copy of the weights from
    the host takes."""

    seconds: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    host: int = 0
    device: int = 0
    mapped: int = 0

    def row(self, name: str) -> Cells:
        total = self.host + self.device + self.mapped
        return {
            "path": name,
            "switches": len(self.seconds),
            "p50 ms": _rank(self.seconds, 50) * 1e3,
            "p95 ms": _rank(self.seconds, 95) * 1e3,
            "of a copy p50": _rank(self.of_copy, 50),
            "copy GB/s": total / sum(self.bound) / 1e9,
            "GB": total / len(self.seconds) / 1e9,
            "from the host": self.host / total,
            "within": self.device / total,
            "mapped": self.mapped / total,
        }

    @property
    def of_copy(self) -> list[float]:
        return [s / bound for s, bound in zip(self.seconds, self.bound, strict=True)]


class Bench:
    """The stager of one way, and an arena for it."""

    def __init__(
        self, scale: Scale, way: Switching, host: torch.Tensor, device: torch.device
    ) -> None:
        self.device = device
        plans = [_plan(name, nbytes, scale) for name, nbytes in scale.models.items()]
        rows = (scale.row_bytes,) * scale.layers
        # Each ends where the buffer does, so that no two have the same bytes at one place.
        self.models = {p.name: Weights(p, host[len(host) - p.weight_bytes :], rows) for p in plans}
        memory = device_memory(
            scale.device_bytes,
            self.device,
            way,
            layer=min(plan.kv_blocks for plan in plans) * scale.row_bytes,
            weights=max(plan.weight_bytes for plan in plans),
        )
        whole = MemoryPlan(scale.device_bytes, PAGE, 0, scale.row_bytes, tuple(plans))
        self.arena = Arena(whole, memory)
        self.stager = Stager(self.arena, self.models, self.device, way, share=1.0)
        self.active = ""
        self.intact = True
        # Seconds of a plain copy of the weights, not of a first one; and before the stager has any
        # there to be spoiled.
        self.bounds = {
            name: min(self._copy(weights) for _ in range(2))
            for name, weights in self.models.items()
        }

    def switch(self, model: str, path: Path | None = None) -> None:
        begin = time.perf_counter()
        moved = self.stager.switch(model)
        self.wait()
        seconds = time.perf_counter() - begin
        self.active = model
        self.intact = self.intact and self._is_whole(model)
        if path is not None:
            path.seconds.append(seconds)
            path.bound.append(self.bounds[model])
            path.host += moved.h2d_bytes
            path.device += moved.d2d_bytes
            path.mapped += moved.mapped_bytes

    def stage(self, following: str, part: float) -> None:
        """Forget all that is kept, stage the weights, and let blocks take back all but ``part``."""
        blocks = self.models[self.active].plan.kv_blocks
        wanted = self.models[following].plan.weight_bytes
        self.stager.serving(following, blocks)
        self.stager.serving(following, 0)
        until = time.perf_counter() + PATIENCE
        while self.stager.state.covered_bytes < wanted and time.perf_counter() < until:
            time.sleep(0.001)
        step = max(1, blocks // 256)
        for rows in range(step, blocks, step):
            if self.stager.state.covered_bytes <= part * wanted:
                return
            self.stager.serving(following, rows)

    def wait(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.synchronize()

    def _copy(self, weights: Weights) -> float:
        begin = time.perf_counter()
        self.arena.weights(weights.plan).copy_(weights.host, non_blocking=True)
        self.wait()
        return time.perf_counter() - begin

    def _is_whole(self, model: str) -> bool:
        """A few bytes of every piece of the weights; all of them are too many to read back."""
        weights = self.models[model]
        step = min(1 << 20, weights.plan.weight_bytes // SAMPLE)
        count = weights.plan.weight_bytes // step * step
        here, there = (
            memory[:count].view(-1, step)[:, :SAMPLE].cpu()
            for memory in (self.arena.weights(weights.plan), weights.host)
        )
        return torch.equal(here, there)


def large_switches(device: str, scale: Scale) -> tuple[list[Cells], list[Claim]]:
    """Rows and claims, on the CPU none about time; afterwards the memory is free again."""
    there = torch.device(device)
    host = pinned_buffer(max(scale.models.values()), there)
    _fill(host)
    best = best_switching(there)
    ways = [way for way in Switching if way is not Switching.REMAP or way is best]
    paths: dict[str, Path] = {}
    intact = True
    for way in ways:
        bench = Bench(scale, way, host, there)
        for model, before in _turns(scale):
            _turn(bench, paths, model, before)
        intact = intact and bench.intact
        bench.stager.close()
        del bench
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
    unpin(host, there)
    rows = [path.row(name) for name, path in paths.items()]
    whole = Claim("weights are the host's after every switch", float(intact), "", "= 1", intact)
    return rows, [whole, *(_claims(paths) if device != "cpu" else [])]


def _turns(scale: Scale) -> Iterator[tuple[str, str]]:
    """Each model and the one that is active before, until the time is over."""
    names, until = list(scale.models), time.perf_counter() + scale.seconds
    for turn in range(scale.turns):
        if turn >= len(names) and time.perf_counter() > until:
            return
        yield names[turn % len(names)], names[turn % len(names) - 1]


def _turn(bench: Bench, paths: dict[str, Path], model: str, before: str) -> None:
    way = bench.stager.switching
    kinds: dict[str, float | None] = {way: None}
    if way is not Switching.H2D:
        kinds = {f"half {way}": 0.5, way: 1.0}
    if way is Switching.REMAP:
        kinds["remap, kept"] = None
    for name, part in kinds.items():
        if bench.active != before:
            bench.switch(before)
        if part is not None:
            bench.stage(model, part)
        bench.switch(model, paths.setdefault(name, Path()))


def _claims(paths: dict[str, Path]) -> list[Claim]:
    share = _rank([1 / ratio for ratio in paths[Switching.H2D].of_copy], 50)
    found = [at_least("large: h2d, part of the pinned copy rate (our target)", share, "", 0.8)]
    for name in (Switching.GATHER, Switching.REMAP, "remap, kept"):
        if name in paths:
            ratio = _rank(paths[name].of_copy, 95)
            claim = f"large: {name}, p95 over a copy from the host (our target)"
            found.append(Claim(claim, ratio, "x", "<= 0.25", ratio <= 0.25))
    return found


def _plan(name: str, nbytes: int, scale: Scale) -> ModelPlan:
    block = scale.layers * scale.row_bytes
    blocks = (scale.device_bytes - nbytes - 3 * PAGE) // block
    return ModelPlan(name, nbytes, block, blocks, 64 * blocks)


def _fill(host: torch.Tensor) -> None:
    """Noise that differs from piece to piece."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randint(256, (min(NOISE, len(host)),), dtype=torch.uint8, generator=generator)
    for index, start in enumerate(range(0, len(host), len(noise))):
        piece = host[start : start + len(noise)]
        torch.bitwise_xor(noise[: len(piece)], index % 251, out=piece)


def _rank(values: list[float], percent: float) -> float:
    value = nearest_rank(values, percent)
    assert value is not None
    return value
