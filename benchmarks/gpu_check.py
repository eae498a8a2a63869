"""Everything that needs a CUDA device, in one run: the ``gpu`` tests, switches, KV copies, tokens.

Switches and copies are held against the copy bandwidth of pinned memory, measured in the same
run. A part that breaks is a claim that does not hold, and the others run all the same. With
``--dry-run`` the same steps run on the CPU with tiny sizes, and nothing is claimed of their times.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import Claim, arguments, at_least, write_report
from graph_steps import MODELS, graph_steps
from large_switches import TINY, large_switches, largest

from alipes.instance.checkpoints.sources import prepare
from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    RandomWeights,
    Sampling,
    Targets,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import BlockCopy, Draw, Recurrence, Row

TESTS_SECONDS = 240
LARGE_SECONDS = 30.0
"""Of each way to switch among large weights, of three, beside half a minute to fill the host's."""
FAMILIES = ("qwen3", "qwen3-moe", "deepseek-v3", "qwen3-next")
GREEDY = Sampling(temperature=0)
COPIED_BLOCKS = 128
TICKETS = itertools.count(1)
Cells = dict[str, Any]
Found = tuple[list[Cells], list[Claim]]


def run_tests() -> Found:
    """The ``gpu`` tests in a process of their own; pytest exits 5 where it finds none."""
    command = (sys.executable, "-P", "-m", "pytest", "-m", "gpu", "tests")
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, timeout=TESTS_SECONDS, check=False)
    passed = done.returncode == 0
    return [], [Claim("the gpu tests pass", float(passed), "", "= 1", passed)]


def checkpoints(size: str) -> dict[str, Path]:
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    return {f: prepare(RandomWeights(f, size), cache, lambda *_: None) for f in FAMILIES}


def build(device: str, folders: dict[str, Path]) -> NativeEngine:
    models = tuple(ModelSettings(name, str(folder)) for name, folder in folders.items())
    return NativeEngine(
        InstanceSettings(
            name="check",
            pool=Pool.COLD,
            models=models,
            targets=Targets(),
            endpoint="",
            device=device,
            device_bytes=1 << 30,
        )
    )


def timed(device: str, work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def copy_rate(device: str) -> float:
    """Bytes a second from pinned host memory (plain memory on the CPU)."""
    source = torch.ones(64 << 20)
    source = source.pin_memory() if device != "cpu" else source
    target = torch.empty_like(source, device=device)
    return source.nbytes / min(timed(device, lambda: target.copy_(source)) for _ in range(5))


def switches(device: str, engine: NativeEngine, rounds: int) -> Found:
    """Every model in turn; addresses must stay, and copying must be most of the time."""
    bound, kept = copy_rate(device), True
    seconds: dict[str, list[float]] = {name: [] for name in FAMILIES}
    copied = dict.fromkeys(FAMILIES, 0)
    for _ in range(rounds):
        for name in FAMILIES:
            report = engine.activate(name)
            seconds[name].append(report.seconds)
            copied[name] = report.h2d_bytes + report.on_device_bytes
            kept = kept and report.addresses_kept
    rows: list[Cells] = [
        {
            "case": f"switch to {name}",
            "ms": median(seconds[name]) * 1e3,
            "bytes": copied[name],
            "of copy bound": copied[name] / median(seconds[name]) / bound,
        }
        for name in FAMILIES
    ]
    share = min(row["of copy bound"] for row in rows)
    return rows, [
        Claim("addresses stay over all switches", float(kept), "", "= 1", kept),
        at_least("switches near the copy bound", share, "of it", 0.5),
    ]


def kv_copies(device: str, engine: NativeEngine, rounds: int) -> list[Cells]:
    """Blocks of each model to the host and back, neighbours on both sides and scattered."""
    bound, rows = copy_rate(device), []
    for report in engine.reports:
        engine.activate(report.name)
        parts = report.block_bytes // engine.host.slab_bytes
        count = min(COPIED_BLOCKS, report.kv_blocks, engine.host.count // parts)
        slabs = np.arange(count * parts)
        for layout in ("in a row", "scattered"):
            copies = [
                BlockCopy(block, tuple(own.tolist()))
                for block, own in enumerate(slabs.reshape(count, parts))
            ]
            out = min(timed(device, partial(copy_out, engine, copies)) for _ in range(rounds))
            back = min(timed(device, partial(engine.copy_in, copies)) for _ in range(rounds))
            nbytes = count * report.block_bytes
            for way, seconds in (("to the host", out), ("to the device", back)):
                rows.append(
                    {
                        "case": f"KV of {report.name} {way}, slabs {layout}",
                        "ms": seconds * 1e3,
                        "bytes": nbytes,
                        "of copy bound": nbytes / seconds / bound,
                    }
                )
            slabs = np.random.default_rng(3).permutation(slabs)
    return rows


def copy_out(engine: NativeEngine, copies: list[BlockCopy]) -> None:
    engine.copy_out(next(TICKETS), copies)
    engine.drain()


def speeds(device: str, engine: NativeEngine, steps: int) -> list[Cells]:
    """Tokens a second of each model: a prompt of 512, then eight calls that decode together."""
    rows = []
    recurrent = {report.name for report in engine.reports if report.slots}
    for name in FAMILIES:
        engine.activate(name)
        prompt = np.random.default_rng(2).integers(100, 40_000, 512).astype(np.int32)
        first = [
            Row(
                b"p",
                prompt,
                0,
                range(8 * i, 8 * i + 8),
                Draw(GREEDY, prompt, 512),
                Recurrence(None, i) if name in recurrent else None,
            )
            for i in range(8)
        ]
        # All that is to decode must have been computed: other bytes may be no numbers.
        prefill = min(timed(device, partial(engine.step, [one])) for one in first)
        batch = [
            Row(
                bytes([i]),
                prompt[-1:],
                511,
                range(8 * i, 8 * i + 8),
                Draw(GREEDY, prompt, 512),
                Recurrence(i, i) if name in recurrent else None,
            )
            for i in range(8)
        ]
        decode = min(timed(device, partial(engine.step, batch)) for _ in range(steps))
        rows.append({"case": f"prefill {name}", "tokens/s": 512 / prefill})
        rows.append({"case": f"decode x8 {name}", "tokens/s": 8 / decode})
    return rows


def small_models(device: str, folders: dict[str, Path], short: bool) -> Found:
    engine = build(device, folders)
    rows, claims = switches(device, engine, 3 if short else 34)
    rows += kv_copies(device, engine, 3 if short else 10)
    rows += speeds(device, engine, 3 if short else 20)
    engine.close()
    return rows, claims


def attempted(
    parts: Mapping[str, Callable[[], Found]],
) -> tuple[dict[str, list[Cells]], list[Claim]]:
    """What every part found, or that it broke: the others run all the same."""
    rows: dict[str, list[Cells]] = {}
    claims: list[Claim] = []
    for name, work in parts.items():
        begin = time.perf_counter()
        try:
            rows[name], found = work()
            claims += found
        except Exception:
            traceback.print_exc()
            claims.append(Claim(f"{name}: runs to its end", 0.0, "", "= 1", False))
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return rows, claims


def main() -> int:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dry-run", action="store_true", help="the same steps on the CPU, tiny")
    options = parser.parse_args()
    dry = options.dry_run
    if not dry and not torch.cuda.is_available():
        print("gpu_check: no CUDA device; --dry-run runs the same steps on the CPU")
        return 2
    device, size, short = ("cpu", "tiny", True) if dry else ("cuda", "small", options.quick)
    folders = checkpoints(size)
    scale = TINY if dry else largest(LARGE_SECONDS / (6 if short else 1))
    turns, steps = (2 * len(MODELS), 3) if short else (100, 50)
    parts: dict[str, Callable[[], Found]] = {
        "small models": partial(small_models, device, folders, short),
        "decode with and without graphs": partial(graph_steps, device, folders, turns, steps),
        "switches of large weights": partial(large_switches, device, scale),
    }
    if not dry:
        parts["tests"] = run_tests
    rows, claims = attempted(parts)
    columns = {
        name: list(dict.fromkeys(key for row in own for key in row))
        for name, own in rows.items()
        if own
    }
    everything = [row for own in rows.values() for row in own]
    if dry:
        # What is true or not is so here too; times, which have units, say nothing.
        claims = [claim for claim in claims if not claim.unit]
        return write_report("gpu_check (dry run)", everything, claims, options.json, parts=columns)
    notes = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return write_report("gpu_check", everything, claims, options.json, notes, columns)


if __name__ == "__main__":
    sys.exit(main())
