"""One engine process: sockets on the main thread, the engine loop on another."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import uuid
from types import FrameType
from typing import Final

import msgspec
import zmq

from alipes.instance.connection import Connection, Mailbox
from alipes.instance.contract import (
    PROTOCOL,
    Bye,
    Cancel,
    Drain,
    Failed,
    Finished,
    FromInstance,
    Hello,
    InstanceSettings,
    Stop,
    Submit,
    ToInstance,
    Welcome,
    thread_environment,
)
from alipes.instance.driver import EXIT_OK, EXIT_REFUSED, Assemble, EngineThread, assemble
from alipes.instance.uplink import Do, Step, Uplink

STOP_SECONDS: Final = 3.0
JOIN_SECONDS: Final = 0.2
READS_PER_TURN: Final = 256
SECOND: Final = 1_000_000_000

log = logging.getLogger("alipes.instance")


def run_instance(settings: InstanceSettings, build: Assemble = assemble) -> int:
    """Serve ``settings.models`` until stopped, refused or orphaned; the exit code: 0 in order,
    1 on a defect, 2 where starting again would not help. Must be called on the main thread of a
    process of its own, before torch is imported; ``build`` runs on the engine thread."""
    os.environ.update(thread_environment(settings.threads))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    server = Server(settings, build)
    server.catch_signals()
    code = server.run()
    if not server.engine_is_gone():
        log.warning("%s: the engine is busy; leaving without it", settings.name)
        logging.shutdown()
        os._exit(code)
    return code


class Server:
    """The I/O side. Only the main thread touches the socket and the uplink; the engine thread
    speaks through the mailbox."""

    def __init__(self, settings: InstanceSettings, build: Assemble) -> None:
        self._settings = settings
        self._incarnation = uuid.uuid4().hex
        self._mailbox = Mailbox()
        self._engine = EngineThread(settings, build, self._mailbox.put, self._mailbox.wake)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._uplink: Uplink | None = None
        self._connection: Connection | None = None
        self._calls: set[bytes] = set()
        self._signal = ""
        self._exit: int | None = None
        self._why = ""
        self._deadline = 0

    def engine_is_gone(self) -> bool:
        return self._engine.join(JOIN_SECONDS)

    def catch_signals(self) -> None:
        """SIGTERM and SIGINT stop the server. The handler only notes the signal: whatever it
        interrupts may hold a lock that stopping needs."""
        signal.set_wakeup_fd(self._mailbox.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name

    def run(self) -> int:
        """Until something ends it; the exit code."""
        log.info("%s builds its engine", self._settings.name)
        self._engine.start()
        self._poller.register(self._mailbox.fd, zmq.POLLIN)
        while self._exit is None or self._waits_for_engine(time.monotonic_ns()):
            self._poll()
            self._turn(time.monotonic_ns())
        self._say_goodbye()
        self._context.term()
        log.info("%s ends: %s", self._settings.name, self._why)
        return self._exit

    def _waits_for_engine(self, now: int) -> bool:
        return self._engine.ended is None and now < self._deadline

    def _poll(self) -> None:
        now = time.monotonic_ns()
        due = now + SECOND if self._exit is None else self._deadline
        if self._uplink is not None:
            due = min(due, self._uplink.wakeup())
        self._poller.poll(max(0, (due - now) // 1_000_000 + 1))

    def _turn(self, now: int) -> None:
        """All that is to be done now, on both sides."""
        ended = self._engine.ended
        outgoing = self._mailbox.take()
        if self._uplink is None and self._engine.ready:
            self._uplink = Uplink(self._hello(), self._settings, now)
            self._connect(self._uplink, now)
        if self._uplink is not None:
            for body in outgoing:
                self._tell(self._uplink, body, now)
            self._listen(self._uplink, now)
            self._follow(self._uplink, self._uplink.passed(now), now)
        if self._signal:
            self._finish(EXIT_OK, self._signal)
        if ended is not None:
            self._finish(ended.code, ended.why)

    def _tell(self, uplink: Uplink, body: FromInstance, now: int) -> None:
        if isinstance(body, Finished | Failed):
            self._calls.discard(body.call_id)
        self._follow(uplink, uplink.outgoing(body), now)

    def _listen(self, uplink: Uplink, now: int) -> None:
        """Take what has come on the present connection, so much that beats stay in time."""
        connection = self._connection
        for _ in range(READS_PER_TURN):
            if connection is None or connection is not self._connection:
                return
            try:
                message = connection.receive()
            except msgspec.DecodeError as error:
                self._finish(EXIT_REFUSED, f"the gateway sent an unknown message: {error}")
                return
            if message is None:
                return
            self._take(message)
            self._follow(uplink, uplink.received(message, now), now)

    def _take(self, message: ToInstance) -> None:
        match message:
            case Submit(call_id=call_id):
                self._calls.add(call_id)
                self._engine.post(message)
            case Cancel(call_id=call_id):
                self._calls.discard(call_id)
                self._engine.post(message)
            case Drain() | Welcome():
                self._engine.post(message)
            case Stop():
                self._finish(EXIT_OK, "the gateway asks for it")

    def _follow(self, uplink: Uplink, step: Step, now: int) -> None:
        for envelope in step.send:
            if self._connection is not None and not self._connection.send(envelope):
                self._reconnect(uplink, "the gateway does not read", now)
                return
        match step.do:
            case Do.RECONNECT:
                self._reconnect(uplink, step.reason, now)
            case Do.EXIT_ORPHANED:
                self._finish(EXIT_OK, f"orphaned: {step.reason}")
            case Do.EXIT_REFUSED:
                self._finish(EXIT_REFUSED, f"refused: {step.reason}")
            case Do.NOTHING:
                pass

    def _reconnect(self, uplink: Uplink, reason: str, now: int) -> None:
        """Nobody can hear of the old connection's calls any more: cancel them."""
        log.info("%s connects again: %s", self._settings.name, reason)
        for call_id in self._calls:
            self._engine.post(Cancel(call_id))
        self._calls.clear()
        if self._connection is not None:
            self._poller.unregister(self._connection.socket)
            self._connection.close()
        self._connect(uplink, now)

    def _connect(self, uplink: Uplink, now: int) -> None:
        self._connection = Connection(self._context, self._settings.endpoint)
        self._poller.register(self._connection.socket, zmq.POLLIN)
        self._follow(uplink, uplink.opened(now), now)

    def _finish(self, code: int, why: str) -> None:
        """Begin to end; the first reason counts. An engine that is still being built cannot be
        told and is not waited for."""
        if self._exit is not None:
            return
        self._exit, self._why = code, why
        if self._engine.ready:
            self._deadline = time.monotonic_ns() + round(STOP_SECONDS * SECOND)
            self._engine.post(Stop())
        if code != EXIT_OK:
            log.error("%s: %s", self._settings.name, why)

    def _say_goodbye(self) -> None:
        if self._uplink is None or self._connection is None:
            return
        sent = False
        for body in (*self._mailbox.take(), Bye(self._why)):
            for envelope in self._uplink.outgoing(body).send:
                sent = self._connection.send(envelope)
        self._connection.close(flush=sent)

    def _hello(self) -> Hello:
        settings = self._settings
        return Hello(
            protocol=PROTOCOL,
            name=settings.name,
            incarnation=self._incarnation,
            pool=settings.pool,
            engine=settings.engine,
            device=settings.device,
            block_tokens=settings.block_tokens,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            prefill_chunk=settings.prefill_chunk,
            targets=settings.targets,
            models=self._engine.reports,
            pid=os.getpid(),
            memory=self._engine.about.memory,
            kernels=dict(self._engine.about.kernels),
        )
