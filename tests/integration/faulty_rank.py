"""A rank whose copies to the host go wrong, by turns, in each of the ways that there are, and whose
copies from it are slow."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import torch

from alipes.instance.engine.native.parallel.follower import main
from alipes.kernels import table

DELAY_SECONDS = 0.3
SLOW_SECONDS = 0.02
_GOOD, _IN = table.CPU.copy_out, table.CPU.copy_in
_FAULTS = itertools.cycle(("none", "drop", "none", "corrupt", "none", "delay", "none"))


def faulty(pool: torch.Tensor, rows: torch.Tensor, host: torch.Tensor, slabs: torch.Tensor) -> None:
    match next(_FAULTS):
        case "none":
            _GOOD(pool, rows, host, slabs)
        case "drop":
            host[slabs[-1]] = 0
            _GOOD(pool, rows[:-1], host, slabs[:-1])
        case "corrupt":
            _GOOD(pool, rows, host, slabs)
            host[slabs[len(slabs) // 2], 3] ^= 64
        case "delay":
            time.sleep(DELAY_SECONDS)
            _GOOD(pool, rows, host, slabs)


def slow(host: torch.Tensor, slabs: torch.Tensor, pool: torch.Tensor, rows: torch.Tensor) -> None:
    time.sleep(SLOW_SECONDS)
    _IN(host, slabs, pool, rows)


if __name__ == "__main__":
    table.CPU = replace(table.CPU, copy_out=faulty, copy_in=slow)  # type: ignore[misc]
    main()
