"""SmolLM2-135M-Instruct on the native engine beside transformers' ``generate``, in one run.

Both use the same weights, threads and greedy decoding; transformers runs in float32 with its KV
cache. The two take turns, and each one's best repetition counts, so that a noisy machine
disturbs both alike.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    TokenIds,
    thread_environment,
)

THREADS = min(2, len(os.sched_getaffinity(0)))
# As the launcher sets it for every instance, before the libraries load; it serves both sides.
os.environ |= thread_environment(THREADS) | os.environ

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import Claim, arguments, at_least, write_report  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

from alipes.instance.checkpoints.sources import SMOLLM2, prepare  # noqa: E402
from alipes.instance.engine.native.engine import NativeEngine  # noqa: E402
from alipes.instance.engine.protocol import Draw, Row  # noqa: E402

PARAMETERS, VOCABULARY = 134_515_008, 49_152 * 576
GREEDY = Sampling(temperature=0)
PROMPT, CHUNK, STREAMS = 64, 512, 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of one repetition, and how many there are."""

    decode: int
    prefill: int
    repeats: int


class Ticks(BaseStreamer):
    """When ``generate`` handed over the prompt and each token after it."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class Peer:
    """transformers, float32, one call at a time."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prefill(self, prompt: TokenIds) -> float:
        """Seconds from the prompt to the first token."""
        times = self._generate(prompt, 1)
        return times[1] - times[0]

    def decode(self, prompt: TokenIds, count: int) -> float:
        """Seconds from the first token to ``count`` tokens later."""
        times = self._generate(prompt, count + 1)
        return times[-1] - times[1]

    def _generate(self, prompt: TokenIds, count: int) -> list[float]:
        ids, ticks = torch.from_numpy(prompt.astype(np.int64))[None], Ticks()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            use_cache=True,
            streamer=ticks,
        )
        return ticks.times


class Ours:
    """The native engine without a scheduler: rows made by hand, blocks one after another."""

    def __init__(self, folder: Path, dtype: str) -> None:
        settings = InstanceSettings(
            name="benchmark",
            pool=Pool.HOT,
            models=(ModelSettings("smollm2", str(folder), dtype),),
            targets=Targets(),
            endpoint="",
            threads=THREADS,
        )
        self.engine = NativeEngine(settings)
        self.engine.activate("smollm2")

    def prefill(self, prompt: TokenIds, stream: int = STREAMS) -> float:
        """Seconds from the prompt to the first token."""
        begin = time.perf_counter()
        for start in range(0, len(prompt), CHUNK):
            ids = prompt[: start + CHUNK]
            draw = Draw(GREEDY, ids, len(ids)) if len(ids) == len(prompt) else None
            self.engine.step([Row(bytes([stream]), ids[start:], start, _blocks(stream), draw)])
        return time.perf_counter() - begin

    def decode(self, prompts: list[TokenIds], count: int) -> float:
        """Seconds for ``count`` steps over all prompts, which are prefilled already."""
        histories = list(prompts)
        begin = time.perf_counter()
        for _ in range(count):
            rows = [
                Row(bytes([i]), ids[-1:], len(ids) - 1, _blocks(i), Draw(GREEDY, ids, PROMPT))
                for i, ids in enumerate(histories)
            ]
            drawn = self.engine.step(rows)
            histories = [
                np.append(ids, np.int32(one.token))
                for ids, one in zip(histories, drawn, strict=True)
            ]
        return time.perf_counter() - begin


def _blocks(stream: int) -> range:
    return range(24 * stream, 24 * stream + 24)


def best(measure: Callable[[], float], repeats: int) -> float:
    return min(measure() for _ in range(repeats))


def bandwidth() -> float:
    """Bytes a second read by a sum over 512 MB."""
    memory = torch.ones(128 << 20)
    return memory.nbytes / best(lambda: _timed(memory.sum), 5)


def matmul_rate() -> float:
    """float32 operations a second of a 2,048-cubed product."""
    a = torch.ones(2048, 2048)
    return 2 * 2048**3 / best(lambda: _timed(lambda: a @ a), 5)


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(folder: Path, sizes: Sizes) -> dict[str, float]:
    """Tokens a second of every case, by name."""
    generator = np.random.default_rng(1)
    prompts = [generator.integers(100, 40_000, PROMPT).astype(np.int32) for _ in range(STREAMS)]
    long = generator.integers(100, 40_000, sizes.prefill).astype(np.int32)
    peer, half, full = Peer(folder), Ours(folder, "float16"), Ours(folder, "float32")
    cases: dict[str, tuple[int, Callable[[], float]]] = {
        "transformers": (sizes.decode, lambda: peer.decode(prompts[0], sizes.decode)),
        "float16": (sizes.decode, lambda: half.decode(prompts[:1], sizes.decode)),
        "float32": (sizes.decode, lambda: full.decode(prompts[:1], sizes.decode)),
        "float16 x8": (STREAMS * sizes.decode, lambda: half.decode(prompts, sizes.decode)),
        "float32 x8": (STREAMS * sizes.decode, lambda: full.decode(prompts, sizes.decode)),
        "transformers prefill": (sizes.prefill, lambda: peer.prefill(long)),
        "float16 prefill": (sizes.prefill, lambda: half.prefill(long)),
        "float32 prefill": (sizes.prefill, lambda: full.prefill(long)),
    }
    for ours in (half, full):
        for stream, prompt in enumerate(prompts):
            ours.prefill(prompt, stream)
    peer.decode(prompts[0], 2)
    seconds = dict.fromkeys(cases, float("inf"))
    for _ in range(sizes.repeats):
        for name, (_, run) in cases.items():
            seconds[name] = min(seconds[name], run())
    return {name: tokens / seconds[name] for name, (tokens, _) in cases.items()}


def table(speed: dict[str, float], read: float, multiply: float) -> list[dict[str, Any]]:
    """``read`` in bytes a second and ``multiply`` in operations a second are the bounds."""
    rows = []
    for name, tokens in speed.items():
        form, _, case = name.partition(" ")
        against = speed["transformers prefill" if case == "prefill" else "transformers"]
        # A prefill reads the matrix of the vocabulary for its last token only.
        used = PARAMETERS - VOCABULARY if case == "prefill" else PARAMETERS
        row = {
            "form": form,
            "case": {"": "one stream", "x8": f"{STREAMS} streams"}.get(case, case),
            "tokens/s": round(tokens, 1),
            "of transformers": round(tokens / against, 2),
            "of matmul bound": round(2 * tokens * used / multiply, 2),
        }
        if case != "prefill":
            passes = tokens / STREAMS if case == "x8" else tokens
            element = 2 if form == "float16" else 4
            row["of read bound"] = round(passes * PARAMETERS * element / read, 2)
        rows.append(row)
    return rows


def claims(speed: dict[str, float]) -> list[Claim]:
    one, prefill = speed["transformers"], speed["transformers prefill"]
    ratios = [
        ("one stream, default mode (our target)", speed["float16"] / one, 2.7),
        ("8 streams together, default mode (our target)", speed["float16 x8"] / one, 5.0),
        ("prefill, default mode (our target)", speed["float16 prefill"] / prefill, 0.9),
        ("one stream, float32 (our target)", speed["float32"] / one, 1.4),
    ]
    return [at_least(name, value, "x transformers", goal) for name, value, goal in ratios]


def main() -> int:
    options = arguments(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    torch.set_num_threads(THREADS)
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    folder = prepare(SMOLLM2, cache, lambda what, part: None)
    sizes = Sizes(8, 512, 5) if options.quick else Sizes(32, 1024, 6)
    speed = measure(folder, sizes)
    read, multiply = bandwidth(), matmul_rate()
    notes = {
        "threads": THREADS,
        "omp": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "GOMP_"))},
        "read_bytes_per_s": read,
        "matmul_flop_per_s": multiply,
    }
    rows = table(speed, read, multiply)
    return write_report("engine", rows, claims(speed), options.json, notes)


if __name__ == "__main__":
    sys.exit(main())
