"""Where the gateway's link socket and state live, and who may open them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO, Final

IPC_PATH_BYTES: Final = 107


class FleetError(Exception):
    """The link socket cannot be used; the message names it and the remedy."""


def default_endpoint(cluster_file: str) -> str:
    """A short ipc endpoint for this user and cluster file. It is the same after a restart, so
    that instances which outlive their gateway find the next one."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"alipes-{os.getuid()}"
    name = _name_of(cluster_file)
    path = str(folder / name)
    if len(path) > IPC_PATH_BYTES:
        path = f"/tmp/alipes-{os.getuid()}/{name}"
    return f"ipc://{path}"


def default_state_folder(cache: Path, cluster_file: str) -> Path:
    """What a gateway of this cluster file keeps for the next one; ``cache`` is the file's."""
    return cache / "state" / _name_of(cluster_file)


def _name_of(cluster_file: str) -> str:
    """The same for every path that leads to the file."""
    path = str(Path(cluster_file).resolve())
    return hashlib.blake2b(path.encode(), digest_size=6).hexdigest()


def private_folder(folder: Path) -> bool:
    """Make ``folder`` if it is missing; whether only this user can use it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    return state.st_uid == os.getuid() and not state.st_mode & 0o077


def owned_folder(folder: Path) -> bool:
    """Make ``folder`` if it is missing; whether only this user can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def lock(file: IO[bytes] | int) -> bool:
    """Take the lock of an open file or folder; False where another process has it. It goes with
    the process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
        if not private_folder(folder):
            raise FleetError(
                f"endpoint {self._endpoint}: folder {folder} must belong to this user with mode "
                "700; set gateway.endpoint to a path in such a folder"
            )
        file = Path(f"{self._path}.lock").open("ab")  # noqa: SIM115
        if not lock(file):
            file.close()
            raise FleetError(
                f"endpoint {self._endpoint}: another gateway has it; stop that one or set "
                "gateway.endpoint"
            )
        self._lock = file

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
