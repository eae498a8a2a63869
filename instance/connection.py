"""The socket of an instance, and the mailbox through which its engine thread reaches it."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Final

import zmq

from alipes.instance.contract import (
    LINK_SECRET_VARIABLE,
    Envelope,
    FromInstance,
    ToInstance,
    encode,
    to_instance,
)

QUEUE_MESSAGES: Final = 1 << 16
LINGER_MILLISECONDS: Final = 500


class Connection:
    """One DEALER connection to the gateway; each has its own numbering, so none is reused."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self.socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        secret = os.environ.get(LINK_SECRET_VARIABLE, "").encode()
        if secret and endpoint.startswith("tcp://"):
            public = zmq.curve_public(secret)
            self.socket.curve_secretkey = secret
            self.socket.curve_publickey = public
            self.socket.curve_serverkey = public
        self.socket.connect(endpoint)

    def send(self, envelope: Envelope) -> bool:
        """False when the queue is full: the gateway has not read for long."""
        try:
            self.socket.send(encode(envelope), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> ToInstance | None:
        """The next message, or None. Raises ``msgspec.DecodeError`` or ``ValidationError``."""
        try:
            raw = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return to_instance.decode(raw)

    def close(self, *, flush: bool = False) -> None:
        self.socket.close(linger=LINGER_MILLISECONDS if flush else 0)


class Mailbox:
    """Messages from the engine thread to the I/O thread; ``fd`` is readable when some wait."""

    def __init__(self) -> None:
        self._messages: deque[FromInstance] = deque()
        self.fd, self.wake_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.wake_fd, False)

    def put(self, body: FromInstance) -> None:
        self._messages.append(body)
        self.wake()

    def wake(self) -> None:
        """Make ``fd`` readable; a full pipe is readable already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_fd, b"\0")

    def take(self) -> list[FromInstance]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        taken: list[FromInstance] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.wake_fd)
