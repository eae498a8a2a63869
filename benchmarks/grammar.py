"""What a grammar costs a decode step of SmolLM2 on the native engine: steps of a batch whose calls
are all under a grammar beside steps of the same batch without one, in turns."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    thread_environment,
)

THREADS = min(2, len(os.sched_getaffinity(0)))
os.environ |= thread_environment(THREADS) | os.environ

import numpy as np  # noqa: E402
from common import Claim, arguments, write_report  # noqa: E402
from llguidance import LLMatcher  # noqa: E402

from alipes.instance.checkpoints.sources import SMOLLM2, prepare  # noqa: E402
from alipes.instance.engine.grammar import Grammars, Vocabulary  # noqa: E402
from alipes.instance.engine.native.engine import NativeEngine  # noqa: E402
from alipes.instance.engine.protocol import Draw, Row  # noqa: E402

PROMPT, BLOCK = 64, 64
SCHEMA = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 100,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 40},
                    "count": {"type": "integer"},
                    "kind": {"enum": ["small", "middle", "large"]},
                },
                "required": ["name", "count", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
SAMPLINGS = {"greedy": Sampling(temperature=0.0), "sampled": Sampling(temperature=0.8, top_p=0.95)}


class Batch:
    """Calls that decode together, each with blocks of its own from ``first`` on."""

    def __init__(self, size: int, steps: int, sampling: Sampling, first: int, name: bytes) -> None:
        self._sampling = sampling
        self._blocks = -(-(PROMPT + steps + 1) // BLOCK)
        self._first = first
        self._ids = [bytes([number]) + name for number in range(size)]
        rng = np.random.default_rng(1)
        self._tokens = [rng.integers(20, 40_000, PROMPT).astype(np.int32) for _ in range(size)]
        self._done = 0

    @property
    def last(self) -> int:
        return self._first + self._blocks * len(self._ids)

    def rows(self) -> list[Row]:
        return [self._row(number) for number in range(len(self._ids))]

    def _row(self, number: int) -> Row:
        tokens, first = self._tokens[number], self._first + number * self._blocks
        draw = Draw(self._sampling, tokens, PROMPT)
        blocks = range(first, first + self._blocks)
        return Row(self._ids[number], tokens[self._done :], self._done, blocks, draw)

    def step(self, engine: NativeEngine) -> float:
        """Seconds."""
        rows = self.rows()
        begin = time.perf_counter()
        sampled = engine.step(rows)
        seconds = time.perf_counter() - begin
        self._done = len(self._tokens[0])
        for number, drawn in enumerate(sampled):
            self._tokens[number] = np.append(self._tokens[number], np.int32(drawn.token))
        return seconds


def with_grammar(sampling: Sampling) -> Sampling:
    return Sampling(temperature=sampling.temperature, top_p=sampling.top_p, seed=1, grammar=GRAMMAR)


def measure(engine: NativeEngine, folder: Path, kind: str, size: int, steps: int) -> dict[str, Any]:
    """Medians in milliseconds; ``mask`` is what the masks of one step take by themselves."""
    sampling = SAMPLINGS[kind]
    free = Batch(size, steps, sampling, 0, b"free" + kind.encode())
    bound = Batch(size, steps, with_grammar(sampling), free.last, b"bound" + kind.encode())
    grammars = Grammars({"smollm2": Vocabulary(folder, 49_152)}, size)
    times: dict[str, list[float]] = {"without": [], "with": [], "mask": []}
    for number in range(steps):
        pair = [("without", free), ("with", bound)]
        for name, batch in pair if number % 2 else pair[::-1]:
            times[name].append(batch.step(engine))
        begin = time.perf_counter()
        masks = grammars.begin("smollm2", bound.rows())
        assert masks is not None
        masks.take()
        times["mask"].append(time.perf_counter() - begin)
    grammars.close()
    ms = {name: statistics.median(taken[2:]) * 1e3 for name, taken in times.items()}
    return {
        "sampling": kind,
        "calls": size,
        "without, ms": ms["without"],
        "with, ms": ms["with"],
        "ratio": ms["with"] / ms["without"],
        "masks alone, ms": ms["mask"],
        "a mask, ms": ms["mask"] / size,
    }


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    steps = 40 if options.quick else 160
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    folder = prepare(SMOLLM2, cache, lambda what, part: None)
    settings = InstanceSettings(
        name="bench",
        pool=Pool.HOT,
        models=(ModelSettings("smollm2", str(folder), "float16"),),
        targets=Targets(),
        endpoint="",
        device_bytes=1 << 30,
        host_bytes=1,
        threads=THREADS,
    )
    engine = NativeEngine(settings)
    engine.activate("smollm2")
    try:
        rows = [measure(engine, folder, kind, size, steps) for kind in SAMPLINGS for size in (1, 8)]
    finally:
        engine.close()
    worst = max(row["ratio"] for row in rows)
    name = "a step under a grammar beside one without"
    claim = Claim(name, worst, "times", "<= 1.15", worst <= 1.15)
    return write_report("grammar", rows, [claim], options.json)


if __name__ == "__main__":
    sys.exit(main())
