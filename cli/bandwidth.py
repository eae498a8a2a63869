"""How fast this machine reads its memory: what bounds a decode step."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def measure_bandwidth(threads: int, megabytes: int = 128, repeats: int = 3) -> float:
    """Bytes a second that ``threads`` threads read from memory together, the best of
    ``repeats``; takes a fraction of a second."""
    parts = np.array_split(np.ones(megabytes << 18, dtype=np.float32), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return (megabytes << 20) / best
