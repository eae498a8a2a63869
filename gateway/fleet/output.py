"""What local processes print, as lines of the gateway's log.

A process holds both ends of the pipe that it prints to. So it can go on printing when its gateway
is gone, and the next one reads the same pipe. A full pipe takes no more, and keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

LINE_BYTES: Final = 1 << 16

log = logging.getLogger("alipes.launcher")


def open_pipe() -> tuple[int, int]:
    """Descriptors of a new pipe: the gateway's, to read, and the process's, for both."""
    reading, writing = os.pipe()
    try:
        both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    os.set_blocking(reading, False)
    return reading, both


def pipe_of(pid: int) -> int:
    """A descriptor to read what a process prints that got its pipe from an earlier gateway.
    Raises ``OSError``."""
    return os.open(f"/proc/{pid}/fd/1", os.O_RDONLY | os.O_NONBLOCK)


async def forward(name: str, descriptor: int) -> None:
    """Log all lines of the process ``name`` until it has ended; closes the descriptor."""
    stream = asyncio.StreamReader(limit=LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while await _forward_line(name, stream):
            pass
    finally:
        transport.close()


async def _forward_line(name: str, stream: asyncio.StreamReader) -> bool:
    """False at the end."""
    try:
        line = await stream.readline()
    except ValueError:
        log.warning("%s: a line over %d bytes is left out", name, LINE_BYTES)
        return True
    if line:
        level, message = forwarded(name, line.decode(errors="replace").rstrip())
        log.log(level, "%s", message)
    return bool(line)


def forwarded(name: str, line: str) -> tuple[int, str]:
    """The level and the message for a line of the process ``name``: lines of its log keep their
    level, and have its name once."""
    word, _, rest = line.partition(" ")
    level = logging.getLevelNamesMapping().get(word)
    if level is None or not rest:
        return logging.INFO, f"{name}: {line}"
    named = rest.startswith((f"{name} ", f"{name}: "))
    return level, rest if named else f"{name}: {rest}"
