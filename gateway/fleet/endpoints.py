"""Where a cluster's link socket and its state live, and who may open the socket."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO, Final

IPC_PATH_BYTES: Final = 107


class FleetError(Exception):
    """The link socket cannot be opened; the message names the endpoint and the remedy."""


def default_endpoint(cluster_file: str) -> str:
    """A short ipc endpoint for this user and cluster file. It is the same after a restart, so
    that instances which outlive their gateway find the next one."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"alipes-{os.getuid()}"
    path = str(folder / _digest(cluster_file))
    if len(path) > IPC_PATH_BYTES:
        path = f"/tmp/alipes-{os.getuid()}/{_digest(cluster_file)}"
    return f"ipc://{path}"


def default_state_folder(cache: str, cluster_file: str) -> Path:
    """A folder in ``cache`` for what outlives the processes of this cluster file. Each may name
    files of its own there."""
    return Path(cache) / "state" / _digest(cluster_file)


def _digest(cluster_file: str) -> str:
    """The same for every way to name the file."""
    resolved = str(Path(cluster_file).resolve())
    return hashlib.blake2b(resolved.encode(), digest_size=6).hexdigest()


def is_private(endpoint: str) -> bool:
    """Whether only this machine can reach ``endpoint``."""
    return endpoint.startswith(("ipc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"))


class SocketFolder:
    """Holds the folder of an ipc endpoint: mode 0700, ours, and one gateway at a time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._path = Path(endpoint.removeprefix("ipc://"))
        self._lock: IO[bytes] | None = None

    def claim(self) -> None:
        """Raises ``FleetError`` where the socket cannot be safe or another gateway has it."""
        if len(os.fsencode(self._path)) > IPC_PATH_BYTES:
            raise FleetError(
                f"endpoint {self._endpoint}: the path is longer than {IPC_PATH_BYTES} bytes; "
                "set gateway.endpoint to a shorter one"
            )
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise FleetError(
                f"endpoint {self._endpoint}: folder {folder} must belong to this user with mode "
                "700; set gateway.endpoint to a path in such a folder"
            )
        lock = Path(f"{self._path}.lock").open("ab")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise FleetError(
                f"endpoint {self._endpoint}: another gateway has it; stop that one or set "
                "gateway.endpoint"
            ) from None
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
