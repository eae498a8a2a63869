"""What the gateway adds to a call, and how many calls it carries, beside SGLang's router.

Both stand before backends of the same pace (the fake engine; a paced HTTP worker). Added latency
is the time through a system less the median time of its bare backend. The peer is measured in
the same run where ``--router-python`` or ``ALIPES_SGLANG_ROUTER_PYTHON`` names a Python that has
``sglang-router``. Three processes share the machine's cores with the client: rates are floors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpload
import msgspec
import numpy as np
from common import Claim, arguments, write_report
from gateway_stacks import DirectLink, alipes, long_context_folder, sglang_router, worker

CHAT = "/v1/chat/completions"
STEP = 0.005
TOKENS = 16
BIG_BYTES = 400_000
CONTINUATION_WORDS = 100_000
CONNECTIONS = 16

Row = dict[str, Any]


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="alipes-bench-") as name:
        work = Path(name)
        rows, claims = asyncio.run(measure(options, work))
    return write_report("gateway", rows, claims, options.json)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--router-python",
        default=os.environ.get("ALIPES_SGLANG_ROUTER_PYTHON", ""),
        help="a Python that has sglang-router",
    )
    return parser.parse_args()


async def measure(options: argparse.Namespace, work: Path) -> tuple[list[Row], list[Claim]]:
    repeats, seconds = (12, 1.5) if options.quick else (60, 5.0)
    folder = long_context_folder(work)
    async with DirectLink(work, folder, STEP) as link:
        bare = await _bare(link, repeats)
    with alipes(work, folder, STEP) as port:
        rows, continuation = await _ours(port, bare, repeats, seconds)
    claims = [
        Claim(
            "gateway time of a 100K-token continuation (our target)",
            continuation * 1e3,
            "ms",
            "< 4",
            continuation < 0.004,
        )
    ]
    if not options.router_python:
        print("sglang-router: skipped; name a Python that has it with --router-python")
        return rows, claims
    peer = await _peer(options.router_python, work, repeats, seconds)
    return _with_peer(rows, peer) + peer, claims + _beside(rows, peer)


# --- ours --------------------------------------------------------------------------------------


async def _bare(link: DirectLink, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds (first token, end) of the engine behind its link, by prompt."""
    rng = np.random.default_rng(1)
    bare = {}
    for name, length in (("small", 40), ("400KB", 75_000), ("continuation", 100_000)):
        tokens = rng.integers(100, 40_000, length).astype("<i4").tobytes()
        await link.generate(tokens, 1)
        count = 1 if name == "continuation" else TOKENS
        times = [await link.generate(tokens, count) for _ in range(repeats)]
        bare[name] = (median(t[0] for t in times), median(t[1] for t in times))
    return bare


async def _ours(
    port: int, bare: dict[str, tuple[float, float]], repeats: int, seconds: float
) -> tuple[list[Row], float]:
    rows = []
    for size in ("small", "400KB"):
        for stream in (True, False):
            timings = await _timings(port, size, stream, repeats)
            rows.append(_latency("alipes", size, stream, timings, bare[size]))
            rate = await _rate(port, size, stream, seconds)
            rows.append(_throughput("alipes", size, stream, rate))
    added = await _continuations(port, repeats, bare["continuation"][0])
    rows.append(_row("alipes", "100K-token continuation", True, added))
    return rows, median(added)


async def _continuations(port: int, repeats: int, bare: float) -> list[float]:
    """A conversation of 100K tokens grows by an answer and a question, again and again; seconds
    to the first token beyond those of the bare engine."""
    messages = [{"role": "user", "content": _words(CONTINUATION_WORDS, 7)}]
    raws = []
    for i in range(repeats + 1):
        raws.append(_request(port, "paced", messages, True, 1))
        messages.append({"role": "assistant", "content": f" word {i}"})
        messages.append({"role": "user", "content": _words(60, i)})
    timings = await httpload.one_by_one(port, raws)
    return [timing.first - bare for timing in timings[1:]]


# --- the peer ----------------------------------------------------------------------------------


async def _peer(python: str, work: Path, repeats: int, seconds: float) -> list[Row]:
    rows = []
    with worker(STEP) as backend:
        bare = {}
        for size in ("small", "400KB"):
            for stream in (True, False):
                timings = await _timings(backend, size, stream, repeats)
                first = median(t.first for t in timings)
                bare[size, stream] = (first, median(t.total for t in timings))
        with sglang_router(python, backend, work) as port:
            for size, stream in bare:
                timings = await _timings(port, size, stream, repeats)
                rows.append(_latency("sglang-router", size, stream, timings, bare[size, stream]))
                rate = await _rate(port, size, stream, seconds)
                rows.append(_throughput("sglang-router", size, stream, rate))
    return rows


def _with_peer(ours: Sequence[Row], peer: Sequence[Row]) -> list[Row]:
    """Our rows with the ratio of our value to the peer's, where it has one."""

    def key(row: Row) -> tuple[str, str, str]:
        return row["what"], row["body"], row["mode"]

    theirs = {key(row): row for row in peer}
    shown = []
    for row in ours:
        other = theirs.get(key(row))
        name = "rate" if "rate" in row else "p50_ms"
        ratio = round(row[name] / other[name], 3) if other and other[name] else ""
        shown.append(row | {"to_peer": ratio})
    return shown


def _beside(ours: Sequence[Row], peer: Sequence[Row]) -> list[Claim]:
    """The peer lacks TCP_NODELAY and pays for it in streams."""

    def added(rows: Sequence[Row]) -> float:
        wanted = ("added latency", "small", "streamed")
        return next(
            float(row["p50_ms"])
            for row in rows
            if (row["what"], row["body"], row["mode"]) == wanted
        )

    mine, theirs = added(ours), added(peer)
    return [
        Claim(
            "added time to the first streamed text, small body (our target)",
            mine,
            "ms",
            f"<= sglang-router's {theirs:.2f}",
            mine <= theirs,
        )
    ]


# --- measuring ---------------------------------------------------------------------------------


async def _timings(port: int, size: str, stream: bool, repeats: int) -> list[httpload.Timing]:
    raws = [_request(port, "paced", _messages(size, i), stream, TOKENS) for i in range(repeats + 2)]
    return (await httpload.one_by_one(port, raws))[2:]


async def _rate(port: int, size: str, stream: bool, seconds: float) -> float:
    raw = _request(port, "instant", _messages(size, 0), stream, TOKENS)
    await httpload.one_by_one(port, [raw])
    return await httpload.side_by_side(port, raw, CONNECTIONS, seconds)


def _messages(size: str, seed: int) -> list[dict[str, str]]:
    """A conversation whose last question is new and whose beginning, if long, is known."""
    messages = []
    if size == "400KB":
        messages = [
            {"role": "user", "content": _words(BIG_BYTES // 6, 3)},
            {"role": "assistant", "content": "noted"},
        ]
    return [*messages, {"role": "user", "content": f"Question {seed}: what now?"}]


def _words(count: int, seed: int) -> str:
    """Text of ``count`` short words, near six bytes and a token or so each."""
    stock = ["where", "other", "table", "green", "house", "under", "light", "seven", "plant"]
    picks = np.random.default_rng(seed).integers(0, len(stock), count)
    return " ".join(stock[i] for i in picks)


def _request(port: int, model: str, messages: list[Any], stream: bool, tokens: int) -> bytes:
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": tokens,
        "stream": stream,
        "ignore_eos": True,
    }
    return httpload.request(port, CHAT, msgspec.json.encode(body))


def _latency(
    system: str,
    size: str,
    stream: bool,
    timings: Sequence[httpload.Timing],
    bare: tuple[float, float],
) -> Row:
    """To the first text of a stream, to the end of a whole answer."""
    if stream:
        return _row(system, size, stream, [timing.first - bare[0] for timing in timings])
    return _row(system, size, stream, [timing.total - bare[1] for timing in timings])


def _row(system: str, size: str, stream: bool, added: Sequence[float]) -> Row:
    ranked = sorted(added)
    return {
        "system": system,
        "what": "added latency",
        "body": size,
        "mode": "streamed" if stream else "whole",
        "p50_ms": round(median(ranked) * 1e3, 3),
        "p95_ms": round(ranked[max(0, -(-95 * len(ranked) // 100) - 1)] * 1e3, 3),
    }


def _throughput(system: str, size: str, stream: bool, rate: float) -> Row:
    return {
        "system": system,
        "what": "requests/s",
        "body": size,
        "mode": "streamed" if stream else "whole",
        "rate": round(rate, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
