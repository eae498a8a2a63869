"""Messages between two processes over a stream socket, every wait of which is bounded."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any, Final

import msgspec

_LENGTH: Final = struct.Struct("<I")
_READ: Final = 1 << 16


class ChannelClosed(Exception):
    """The other end is gone, or takes nothing any more."""


class Channel:
    """Length-prefixed msgpack; what comes is one of the types that ``receives`` is a union of."""

    def __init__(self, sock: socket.socket, receives: Any, send_seconds: float) -> None:
        sock.settimeout(send_seconds)
        self._socket: Final = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: Any = msgspec.msgpack.Decoder(receives)
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        body = self._encoder.encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, seconds: float) -> Any:
        """The next message; None where none has come whole after ``seconds``."""
        deadline = time.monotonic() + seconds
        while (body := self._take()) is None:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                data = self._socket.recv(_READ)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("it has been closed")
            self._buffer += data
        return self._decoder.decode(body)

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body

    def close(self) -> None:
        self._socket.close()
