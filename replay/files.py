"""Files that are whole whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """``path`` has ``data``, or if that cannot be what it had before. Raises OSError."""
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class Lines:
    """Appends lines to a file that is there, each at once; half a line is none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size

    def add(self, line: bytes) -> None:
        """Raises OSError, such as for a full disk."""
        left = line
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except BaseException:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        os.close(self._file)
