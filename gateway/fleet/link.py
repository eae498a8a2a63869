"""The gateway's end of every link: one ROUTER socket in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from alipes.gateway.fleet.endpoints import FleetError, SocketFolder, is_private
from alipes.gateway.fleet.links import Beaten, Connected, Delivered, Event, Links, Lost, Reply
from alipes.instance.contract import (
    BEAT_SECONDS,
    LINK_SECRET_VARIABLE,
    MISSED_BEATS,
    FromInstance,
    Hello,
    Ping,
    ToInstance,
    encode,
)

READS_PER_TURN: Final = 256
QUEUE_MESSAGES: Final = 1 << 16
MESSAGE_BYTES: Final = 64 << 20

log = logging.getLogger("alipes.fleet")


class FleetSink(Protocol):
    """Whom a fleet tells; called in the event loop. After ``lost`` every call that was placed
    there is gone, and nothing more comes until the next ``connected``."""

    def connected(self, hello: Hello) -> None: ...

    def beat(self, name: str) -> None: ...

    def message(self, name: str, body: FromInstance) -> None: ...

    def lost(self, name: str, reason: str) -> None: ...


class _KnownKey:
    """Admits the one public key (Z85) that belongs to the cluster's secret."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public


class Fleet:
    """Links to the instances ``known`` by name, bound at ``endpoint`` (ipc or tcp). ``greeted`` is
    called with the name and the pid of every process that says Hello, before the sink. ``ending``
    is set once instances are being stopped: that their links end is then as it should be."""

    def __init__(
        self,
        endpoint: str,
        known: frozenset[str],
        sink: FleetSink,
        beat_seconds: float = BEAT_SECONDS,
        greeted: Callable[[str, int], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._sink = sink
        self._greeted = greeted
        self._beat_seconds = beat_seconds
        self._links = Links(known, round(MISSED_BEATS * beat_seconds * 1e9))
        self._folder = SocketFolder(endpoint) if endpoint.startswith("ipc://") else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._authenticator: ThreadAuthenticator | None = None
        self._fd = -1
        self._reading = False
        self._beating: asyncio.Task[None] | None = None
        self.ending = False

    async def start(self) -> None:
        """Bind and serve. Raises ``FleetError`` when the endpoint cannot be used."""
        if self._folder is not None:
            self._folder.claim()
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
        self._socket = socket
        try:
            self._secure(socket)
            socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            await self.stop()
            raise FleetError(f"endpoint {self._endpoint}: {error}; set gateway.endpoint") from error
        except FleetError:
            await self.stop()
            raise
        self._fd = int(socket.getsockopt(zmq.FD))
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        self._beating = asyncio.create_task(self._beat(), name="fleet beats")
        self._read()

    async def stop(self) -> None:
        """Close the socket. Instances go on by themselves until another gateway comes or they
        are orphaned; send ``Stop`` before to end them."""
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = -1
        if self._socket is not None:
            self._socket.close(linger=100)
            self._socket = None
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._context.term()
        if self._folder is not None:
            self._folder.release()

    def send(self, instance: str, message: ToInstance) -> bool:
        """False when ``instance`` has no link or does not read; the sink hears of it as lost,
        in a later turn of the event loop."""
        identity = self._links.identity(instance)
        if identity is None:
            return False
        reason = self._write(identity, message)
        if reason:
            asyncio.get_running_loop().call_soon(self._unreachable, instance, identity, reason)
        return not reason

    def drop(self, name: str, reason: str, pid: int | None = None) -> None:
        """End a link whose process is known to be gone, after what it still said. With ``pid``,
        only a link of that process."""
        self._read_all()
        if pid is None or self._links.pid(name) == pid:
            self._tell(self._links.drop(name, reason))

    def _unreachable(self, name: str, identity: bytes, reason: str) -> None:
        self._read_all()
        if self._links.identity(name) == identity:
            self._tell(self._links.drop(name, reason))

    def _secure(self, socket: zmq.Socket[bytes]) -> None:
        secret = os.environ.get(LINK_SECRET_VARIABLE, "").encode()
        if not self._endpoint.startswith("tcp://"):
            return
        if not secret:
            if is_private(self._endpoint):
                return
            raise FleetError(
                f"endpoint {self._endpoint}: other machines can reach it; set "
                f"{LINK_SECRET_VARIABLE} to one CURVE secret key on every machine"
            )
        public = zmq.curve_public(secret)
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(credentials_provider=_KnownKey(public))
        socket.curve_server = True
        socket.curve_secretkey = secret
        socket.curve_publickey = public

    def _write(self, identity: bytes, message: ToInstance) -> str:
        """Empty, or why the message did not go."""
        if self._socket is None:
            return "the fleet has stopped"
        try:
            self._socket.send_multipart((identity, encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            return "it does not read"
        except zmq.ZMQError as error:
            return f"its connection is gone ({error})"
        finally:
            self._read_soon()
        return ""

    def _read_soon(self) -> None:
        """The socket's descriptor signals edges only, and any use of the socket may take one:
        look again."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        self._reading = False
        self._read()

    def _read(self) -> bool:
        """Take what has come, at most so much that the event loop keeps turning; whether all of
        it was taken."""
        for _ in range(READS_PER_TURN):
            if self._socket is None:
                return True
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(frames) == 2:
                self._tell(self._links.received(frames[0], frames[1], time.monotonic_ns()))
        self._read_soon()
        return False

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Delivered(name=name, body=body):
                    self._sink.message(name, body)
                case Beaten(name=name):
                    self._sink.beat(name)
                case Connected(hello=hello):
                    log.info("%s connected, pid %d", hello.name, hello.pid)
                    if self._greeted is not None:
                        self._greeted(hello.name, hello.pid)
                    self._sink.connected(hello)
                case Lost(name=name, reason=reason):
                    level = logging.INFO if self.ending else logging.WARNING
                    log.log(level, "%s lost: %s", name, reason)
                    self._sink.lost(name, reason)
                case Reply(identity=identity, message=message):
                    self._write(identity, message)

    def _read_all(self) -> None:
        while not self._read():
            pass

    async def _beat(self) -> None:
        """Ping every link; a link is overdue only when nothing of it is left to be read, so that
        a late event loop does not take itself for dead instances."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            if self._read():
                self._tell(self._links.overdue(time.monotonic_ns()))
            for name in self._links.connected():
                self.send(name, Ping())
