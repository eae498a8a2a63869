"""The HTTP server: granian inside this process's event loop.

Its listening socket has TCP_NODELAY, which accepted ones inherit, so a streamed chunk leaves at
once. In the same way they get TCP_USER_TIMEOUT: the server takes every chunk it is given, so a
client that reads nothing, or whose network is gone, would fill this process's memory, and hold
its calls, until TCP gives up by itself. It binds with SO_REUSEPORT, which would let two gateways
share a port in silence: the port is tried without it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from alipes.gateway.config import ConfigError

BACKLOG: Final = 1024
_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5.0
UNREAD_SECONDS: Final = 60.0


class HttpError(ConfigError):
    """The address cannot be served; the message names it and the remedy."""


class HttpServer:
    """Serves an ASGI application at ``host``:``port`` between ``start`` and ``stop``. A client
    that takes nothing of what is sent for ``unread`` seconds is disconnected."""

    def __init__(self, app: Any, host: str, port: int, unread: float = UNREAD_SECONDS) -> None:
        self._unread = unread
        self._host = host
        self._port = port
        self._server = Server(
            app,
            host,
            port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            log_enabled=False,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ``HttpError`` where the address is taken or is not ours."""
        self._claim()
        self._task = asyncio.create_task(self._server.serve(), name="http")
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while not await self._answers():
            if self._task.done() or asyncio.get_running_loop().time() > deadline:
                raise HttpError(f"gateway.host {self._host}: the HTTP server did not start")
            await asyncio.sleep(0.01)
        for listener in _listeners(self._port):
            listener.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._unread * 1e3)
            )

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        if self._task is None:
            return
        self._server.stop()
        with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(self._task, _STOP_SECONDS)
        self._task = None

    def _claim(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                raise HttpError(
                    f"cannot listen on {self._host}:{self._port}: {error.strerror}; "
                    "set gateway.host and gateway.port to a free address"
                ) from None

    async def _answers(self) -> bool:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        try:
            _, writer = await asyncio.open_connection(host, self._port)
        except OSError:
            return False
        writer.close()
        return True


def _listeners(port: int) -> Iterator[socket.socket]:
    """This process's sockets that listen at ``port``; the server does not give its own away."""
    for name in os.listdir("/proc/self/fd"):
        try:
            candidate = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with candidate:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            if candidate.getsockname()[1] == port:
                yield candidate
