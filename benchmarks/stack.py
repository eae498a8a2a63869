"""A whole stack under measurement: ``alipes serve`` with its instances, as processes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from alipes.cli.stack import FILE, SERVE, STATE, Stack, free_port, started

SETTLE_SECONDS: Final = 30.0


@contextlib.contextmanager
def stack(work: Path, cluster: dict[str, Any], command: Sequence[str] = SERVE) -> Iterator[Stack]:
    """Serve ``cluster``, in the form of the cluster file, from ``work``, a folder of this stack
    alone."""
    work.mkdir(mode=0o700)
    port, file = free_port(), work / FILE
    gateway = {"port": port, "endpoint": f"ipc://{work}/link", **cluster.get("gateway", {})}
    whole = {"state": {"folder": STATE}, **cluster, "gateway": gateway}
    file.write_text(json.dumps(whole, indent=2))
    with started((*command, str(file)), port, work / "alipes.log") as serving:
        yield serving


def settled(serving: Stack) -> dict[str, dict[str, Any]]:
    """Every instance's snapshot once nothing is held any more: two in a row say so. Raises
    RuntimeError when something stays."""
    deadline = time.monotonic() + SETTLE_SECONDS
    quiet = 0
    while quiet < 2:
        admin = serving.admin()
        shown = {one["name"]: one["snapshot"] for one in admin["instances"]}
        held = {name: _held(one) for name, one in shown.items()}
        free = not admin["live_calls"] and not any(held.values())
        quiet = quiet + 1 if free else 0
        if time.monotonic() > deadline:
            raise RuntimeError(f"still held: {admin['live_calls']} calls, {held}")
        time.sleep(0.3)
    return shown


def _held(snapshot: dict[str, Any]) -> int:
    occupancy = snapshot["occupancy"]
    return int(
        snapshot["counters"]["live_calls"] + occupancy["held"] + occupancy.get("host_held", 0)
    )
