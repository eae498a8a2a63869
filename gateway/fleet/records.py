"""What a gateway notes of its local instance processes, so that the next one finds them."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from alipes.gateway.fleet.endpoints import lock, owned_folder

_FOLDER: Final = "instances"
_SUFFIX: Final = ".json"
_NEW: Final = ".new"

log = logging.getLogger("alipes.launcher")


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process. Its pid belongs to no other that has the same ``birth`` (``processes.birth``).
    ``fingerprint`` is that of its ``LaunchSpec``; ``greeted`` once it has said Hello."""

    pid: int
    birth: str
    fingerprint: str
    greeted: bool = False


class Records:
    """One file for each process, under ``state_folder``, which one gateway has at a time. Without
    a folder nothing is kept."""

    def __init__(self, state_folder: Path | None) -> None:
        self._folder = state_folder / _FOLDER if state_folder is not None else None
        self._lock: int | None = None

    @property
    def kept(self) -> bool:
        return self._folder is not None

    def claim(self) -> None:
        """Take the folder, before anything else is done with it. Where that fails nothing is
        kept, as without one."""
        if self._folder is None:
            return
        refusal = self._take(self._folder)
        if refusal:
            log.warning("instances will not outlive this gateway: %s: %s", self._folder, refusal)
            self._unlock()
            self._folder = None

    def release(self) -> None:
        """Give the folder up. It goes if no record is left."""
        if self._folder is None or self._lock is None:
            return
        with suppress(OSError):
            (self._folder / _NEW).unlink(missing_ok=True)
            self._folder.rmdir()
            self._folder.parent.rmdir()
        self._unlock()

    def read(self) -> dict[str, ProcessRecord]:
        """All records, by the instance's name. A file that is none stays, and is left out."""
        records = {}
        for path in self._folder.glob(f"*{_SUFFIX}") if self._folder is not None else ():
            try:
                record = msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s is left out, it is no record of a process: %s", path, error)
                continue
            records[path.name.removesuffix(_SUFFIX)] = record
        return records

    def write(self, name: str, record: ProcessRecord) -> None:
        """Note the process of ``name``. Where that fails it serves all the same, but no later
        gateway will find it."""
        if self._folder is None:
            return
        new = self._folder / _NEW
        try:
            new.write_bytes(msgspec.json.encode(record))
            new.rename(self._folder / f"{name}{_SUFFIX}")
        except OSError as error:
            log.warning("%s, pid %d: no later gateway will find it: %s", name, record.pid, error)

    def remove(self, name: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / f"{name}{_SUFFIX}").unlink()

    def _take(self, folder: Path) -> str:
        """Empty, or why this gateway cannot have it."""
        try:
            if not (owned_folder(folder.parent) and owned_folder(folder)):
                return "it and its parent must belong to this user, with no other writing to them"
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            return f"{error.strerror}; set `cache` or ALIPES_CACHE to a folder that can be written"
        return "" if lock(self._lock) else "another gateway of this cluster file has it"

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
