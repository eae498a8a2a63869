"""How the cores of this machine are divided among local instances."""

from __future__ import annotations

from collections.abc import Mapping


def divide_cores(total: int, requests: Mapping[str, int]) -> dict[str, int]:
    """Threads for each instance. A request above zero is granted as it is; the others share what
    is left, evenly, the earlier ones taking the remainder, and none gets less than one."""
    asking = [name for name, threads in requests.items() if threads <= 0]
    left = total - sum(threads for threads in requests.values() if threads > 0)
    shares = {
        name: max(1, left // len(asking) + (place < left % len(asking)))
        for place, name in enumerate(asking)
    }
    return {name: shares.get(name, threads) for name, threads in requests.items()}
