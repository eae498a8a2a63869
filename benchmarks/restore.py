"""Prefixes that come back from the host, against computing them again, family by family.

Every family's prefix is computed in chunks, copied to the host, and copied back into other blocks.
Beside the copy stands what plain copies of as many bytes take between two buffers in the same run:
from one piece of host memory, in one go. A model with recurrent layers brings back one state too.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from common import Claim, arguments, at_least, write_report

from alipes.instance.checkpoints.sources import prepare
from alipes.instance.contract import (
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Pool,
    RandomWeights,
    Sampling,
    Targets,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import BlockCopy, Draw, Recurrence, Row

FAMILIES: Final = {
    "GQA dense": "qwen3",
    "GQA mixture": "qwen3-moe",
    "latent": "deepseek-v3",
    "gated delta net": "qwen3-next",
}
BLOCK: Final = 64
CHUNK: Final = 512
LARGE_BYTES: Final = 32 << 20
"""From here on a restore is large: what it costs whatever its size is no part of it."""
FRACTION: Final = 0.8
TICKETS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Size:
    """Prefixes in tokens; the best of so many copies, the median of so many pairs."""

    prefixes: tuple[int, ...]
    copies: int


FULL: Final = Size((512, 2048, 8192, 16_384), 9)
QUICK: Final = Size((512, 8192), 5)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    size = QUICK if options.quick else FULL
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for title, family in FAMILIES.items():
            engine = build(family)
            rows += (measure(engine, title, tokens, size.copies) for tokens in size.prefixes)
            engine.close()
    return write_report("restore against recompute", rows, claims(rows), options.json)


def build(family: str) -> NativeEngine:
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    folder = prepare(RandomWeights(family, "small"), cache, lambda *_: None)
    return NativeEngine(
        InstanceSettings(
            name="restore",
            pool=Pool.HOT,
            models=(ModelSettings(family, str(folder)),),
            targets=Targets(),
            endpoint="",
            device_bytes=2 << 30,
            host_bytes=1 << 30,
            block_tokens=BLOCK,
            prefill_chunk=CHUNK,
            max_running=2,
        )
    )


def measure(engine: NativeEngine, title: str, tokens: int, copies: int) -> dict[str, Any]:
    """One prefix: computed once, then copied out and in ``copies`` times."""
    (report,) = engine.reports
    engine.activate(report.name)
    count = tokens // BLOCK
    computing = timed(lambda: compute(engine, report, tokens))
    blocks = list(range(count)) + ([report.kv_blocks] if report.slots else [])
    out = copies_of(report, blocks, engine.host.slab_bytes)
    other = list(range(count, 2 * count)) + ([report.kv_blocks + 1] if report.slots else [])
    back = [BlockCopy(block, copy.slabs) for block, copy in zip(other, out, strict=True)]
    engine.copy_out(next(TICKETS), out)
    engine.drain()
    nbytes = count * report.block_bytes + report.slot_bytes
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    pairs = [
        (timed(lambda: engine.copy_in(back)), timed(lambda: target.copy_(source)))
        for _ in range(copies)
    ]
    restoring, plain = (min(column) for column in zip(*pairs, strict=True))
    return {
        "family": title,
        "tokens": tokens,
        "MB": nbytes / 1e6,
        "recompute ms": computing * 1e3,
        "restore ms": restoring * 1e3,
        "times sooner": computing / restoring,
        "GB/s": nbytes / restoring / 1e9,
        "of memcpy": plain / restoring,
    }


def compute(engine: NativeEngine, report: ModelReport, tokens: int) -> None:
    ids = np.random.default_rng(tokens).integers(100, 40_000, tokens).astype(np.int32)
    blocks = range(-(-tokens // BLOCK))
    for start in range(0, tokens, CHUNK):
        end = min(start + CHUNK, tokens)
        draw = Draw(Sampling(temperature=0), ids, tokens) if end == tokens else None
        recurrence = Recurrence(0 if start else None, 0) if report.slots else None
        engine.step([Row(b"prefix", ids[start:end], start, blocks, draw, recurrence)])


def copies_of(report: ModelReport, blocks: Sequence[int], slab: int) -> list[BlockCopy]:
    """Slabs as a registry with room hands them out: neighbours, in the order of the path."""
    slabs = itertools.count()

    def taken(nbytes: int) -> Iterator[int]:
        return itertools.islice(slabs, nbytes // slab)

    return [
        BlockCopy(
            block,
            tuple(taken(report.slot_bytes if block >= report.kv_blocks else report.block_bytes)),
        )
        for block in blocks
    ]


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    large = [row["of memcpy"] for row in rows if row["MB"] * 1e6 >= LARGE_BYTES]
    sooner = min(row["times sooner"] for row in rows)
    name = f"large restores (from {LARGE_BYTES >> 20} MiB) reach of a plain copy's rate"
    return [
        at_least(name, min(large, default=0.0), "of it", FRACTION),
        at_least("restoring is sooner than computing", sooner, "times", 1.0),
    ]


if __name__ == "__main__":
    sys.exit(main())
