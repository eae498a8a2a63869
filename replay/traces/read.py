"""Trace files in, trajectories out: the format is told by the file's name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from alipes.replay.traces import mini_swe_agent, swe_agent
from alipes.replay.traces.model import TraceError, Trajectory

READERS = {".traj.json": mini_swe_agent.read_calls, ".traj": swe_agent.read_calls}


def read_all(paths: Sequence[Path]) -> tuple[Trajectory, ...]:
    """Every file read and checked before anything is replayed; ``TraceError`` on the first bad
    one."""
    return tuple(read(path) for path in paths)


def read(path: Path) -> Trajectory:
    for suffix, read_calls in READERS.items():
        if path.name.endswith(suffix):
            data = _bytes_of(path)
            digest = hashlib.blake2b(data, digest_size=4).hexdigest()
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name.removesuffix(suffix))[:48]
            return Trajectory(f"{stem}-{digest}", path, read_calls(path, data))
    raise TraceError(
        path,
        "file name",
        "unknown kind of trace",
        "give a SWE-agent .traj or a mini-swe-agent .traj.json file",
    )


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(path, "", reason, "give the path of a readable trace file") from None
