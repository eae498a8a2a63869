"""A trace file before it is known what it holds."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Final

from alipes.replay.traces.lines import bytes_of, opened

HEAD: Final = 64 * 1024
"""Bytes that are looked at before a file is read whole."""


class Source:
    """A file, read as far as is asked for. Everything here raises ``TraceError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # What is no regular file, such as a pipe, can be read once only.
        self._again = path.is_file()

    @cached_property
    def data(self) -> bytes:
        """All of it, unpacked, without a byte order mark."""
        return bytes_of(self.path)

    @cached_property
    def head(self) -> bytes:
        """Its first bytes, at least the first line unless that is very long."""
        if not self._again:
            return self.data[:HEAD]
        with opened(self.path) as file:
            return file.read(HEAD).removeprefix(codecs.BOM_UTF8)

    def forget(self) -> None:
        """Drop what was read of it, if it can be read again."""
        if self._again:
            vars(self).pop("data", None)

    @contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """To read it piece by piece; a byte order mark is still there."""
        if not self._again:
            yield io.BytesIO(self.data)
        else:
            with opened(self.path) as file:
                yield file
