"""Python's cyclic collector while a simulation runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (200_000, 50, 100)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """A simulated instance makes and drops thousands of blocks at a switch, next to none of them
    in cycles: by the usual thresholds the collector would go through all that lives for nothing,
    a quarter of the time of a run without host KV."""
    usual = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
