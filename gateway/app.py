"""The live gateway: routing, fleet, local instances and HTTP around one event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import uvloop
from msgspec.structs import replace

from alipes.gateway.api.routes import build_app, build_web
from alipes.gateway.api.service import Service
from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.events import CallFailure, FailureKind
from alipes.gateway.config import Cluster, RecordSettings
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.fleet.launcher import Launcher, LaunchSpec, LaunchState, ProcessState
from alipes.gateway.fleet.link import Fleet
from alipes.gateway.fleet.prospects import Prospects
from alipes.gateway.http import HttpServer
from alipes.gateway.routing.decision import Policy, RouterSettings
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.state.keeper import StateKeeper
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.telemetry.record import log_calls_to
from alipes.gateway.telemetry.recorder import CallRecorder
from alipes.gateway.text.model import ModelText
from alipes.instance.contract import ToInstance

__all__ = ["Gateway", "NothingServes", "build_app", "serve_gateway"]

STREAM_GRACE: Final = 5.0
_LAST_WRITES: Final = 1.0
_READY_POLL: Final = 0.1

log = logging.getLogger("alipes.gateway")


class NothingServes(Exception):
    """All instances were refused, or cannot be built here; the message names them."""


class Gateway:
    """All parts of one gateway, composed. ``start``, then ``stop``, once. ``policy`` places calls
    otherwise than the file says, to compare with. In the folder ``state`` is what the next gateway
    of the same cluster file goes on with: sessions, stored responses and local instances; without
    one they end with this one. ``hopeless`` is set when no instance will ever serve."""

    def __init__(
        self,
        cluster: Cluster,
        texts: Mapping[str, ModelText],
        endpoint: str,
        launch_specs: Sequence[LaunchSpec] = (),
        policy: Policy | None = None,
        state: Path | None = None,
    ) -> None:
        settings = cluster.gateway
        self._policy = policy
        self.metrics = Metrics(cluster.models, cluster.instances)
        self.router = Router(_serving(cluster), _router_settings(cluster, policy))
        limits = settings.limits
        sessions = SessionTable(limits.sessions, limits.session_idle, secrets.token_bytes)
        self.recorder = _recorder(settings.record, texts)
        observers = (self.metrics, self.recorder) if self.recorder else (self.metrics,)
        self.dispatcher = Dispatcher(
            CallBook(self.router, sessions, os.urandom),
            self._send,
            time.monotonic_ns,
            observers,
            (self.metrics,),
        )
        self.launcher = Launcher(launch_specs, self._process_state, state_folder=state)
        self.fleet = Fleet(
            endpoint,
            frozenset(cluster.instances),
            self.dispatcher,
            greeted=self.launcher.connected,
        )
        self.prospects = Prospects(_serving(cluster))
        self.hopeless = asyncio.Event()
        self.app = build_app(cluster, texts, self.dispatcher, self.metrics)
        self.service: Service = self.app.state.service
        self.http = HttpServer(build_web(self.app), settings.host, settings.port)
        kept = sessions, self.service.responses
        self.state = StateKeeper(state, cluster.state.max_bytes, *kept) if state else None

    async def start(self) -> None:
        """Open the recording, restore what was kept, open the links and the address, start local
        instances or adopt those that are there. Raises ``RecordError``, ``FleetError`` or
        ``HttpError``, with everything stopped again."""
        if self.recorder is not None:
            self.recorder.open(time.monotonic_ns())
        try:
            if self.state is not None:
                await self.state.start()
            await self.fleet.start()
            self.launcher.claim()
            await self.http.start()
        except BaseException:
            self.launcher.release()
            await self.fleet.stop()
            self._close_files()
            raise
        await self.launcher.start()

    def configure(self, cluster: Cluster) -> None:
        """Go on with the keys, limits, routing and ablations of placement of ``cluster``, the same
        file read anew. Models, instances, addresses, recording and state stay what they were: those
        need another gateway. Calls stay where they are."""
        now, began = time.monotonic_ns(), self.service.cluster
        limits = cluster.gateway.limits
        self.dispatcher.book.router.configure(_router_settings(cluster, self._policy), now)
        self.dispatcher.book.sessions.configure(limits.sessions, limits.session_idle, now)
        self.service.configure(
            replace(cluster, models=began.models, instances=began.instances), now
        )
        self.dispatcher.tick()

    @property
    def ready(self) -> bool:
        return self.router.status(time.monotonic_ns()).ready

    async def stop(
        self,
        grace: float = STREAM_GRACE,
        hurry: asyncio.Event | None = None,
        keep_instances: bool = False,
    ) -> None:
        """Turn new calls away, let live ones finish for ``grace`` seconds (or until ``hurry``),
        fail the rest, then end HTTP, instances and links in this order. With ``keep_instances``
        local ones wait for the next gateway, as they do after a crash."""
        self.service.stopping = True
        await self._wait_idle(grace, hurry)
        self.dispatcher.fail_all(CallFailure(FailureKind.STOPPING, "the gateway is stopping"))
        await self._wait_idle(_LAST_WRITES, None)
        await self.http.stop()
        self.fleet.ending = True
        await (self.launcher.leave() if keep_instances else self.launcher.stop())
        await self.fleet.stop()
        self.dispatcher.close()
        self._close_files()

    def _close_files(self) -> None:
        if self.state is not None:
            self.state.stop()
        if self.recorder is not None:
            self.recorder.close()

    async def _wait_idle(self, seconds: float, hurry: asyncio.Event | None) -> None:
        deadline = time.monotonic() + seconds
        while self.service.open_calls and time.monotonic() < deadline:
            if hurry is not None and hurry.is_set():
                return
            await asyncio.sleep(0.02)

    def _send(self, instance: str, message: ToInstance) -> bool:
        return self.fleet.send(instance, message)

    def _process_state(self, state: LaunchState) -> None:
        """A process that is known to be gone need not miss its beats first."""
        if state.state is not ProcessState.RUNNING:
            self.fleet.drop(state.name, state.reason, pid=state.pid)
        # A newer process may serve under its name.
        if state.state is ProcessState.FAILED and self.dispatcher.hello(state.name) is None:
            for model in self.prospects.failed(state.name):
                log.error("nothing will serve %s: all its instances have failed for good", model)
            if not self.prospects.any:
                self.hopeless.set()


def serve_gateway(
    cluster: Cluster,
    folders: Mapping[str, Path],
    launch_specs: Sequence[LaunchSpec],
    on_ready: Callable[[str], None],
    endpoint: str = "",
    policy: Policy | None = None,
    state: Path | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, or until SIGUSR1, which leaves local instances to the
    next gateway. ``folders`` hold the prepared models; ``on_ready`` is told the URL once every
    model has an instance. ``endpoint`` defaults to the file's. Sessions and stored responses
    outlive the process in the folder ``state``, if there is one. Raises
    ``NothingServes`` once no instance will."""
    log_calls_to(sys.stderr)
    texts = {name: ModelText.load(name, folders[name]) for name in cluster.models}
    endpoint = endpoint or cluster.gateway.endpoint
    gateway = Gateway(cluster, texts, endpoint, launch_specs, policy, state)
    gc.collect()
    gc.freeze()
    uvloop.run(_serve(gateway, cluster, on_ready))


async def _serve(gateway: Gateway, cluster: Cluster, on_ready: Callable[[str], None]) -> None:
    """The first signal stops in order; a second one skips the grace of live streams."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    first: list[signal.Signals] = []

    def interrupted(number: signal.Signals) -> None:
        first.append(number)
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, interrupted, number)
    await gateway.start()
    url = f"http://{cluster.gateway.host}:{cluster.gateway.port}"
    log.info("listening on %s", url)
    announcing = asyncio.create_task(_announce(gateway, url, on_ready))
    giving_up = asyncio.create_task(_give_up(gateway, stop, hurry))
    try:
        await stop.wait()
        log.info("stopping; open calls have %g s, or until the next signal", STREAM_GRACE)
    finally:
        announcing.cancel()
        giving_up.cancel()
        await gateway.stop(hurry=hurry, keep_instances=first[:1] == [signal.SIGUSR1])
    if gateway.hopeless.is_set():
        names = ", ".join(cluster.instances)
        raise NothingServes(
            f"no instance can serve: {names} failed for good, for the reasons logged above; mend "
            "the cluster file or this machine"
        )


async def _give_up(gateway: Gateway, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """What waits for an instance waits in vain."""
    await gateway.hopeless.wait()
    hurry.set()
    stop.set()


async def _announce(gateway: Gateway, url: str, on_ready: Callable[[str], None]) -> None:
    while not gateway.ready:
        await asyncio.sleep(_READY_POLL)
    on_ready(url)


def _recorder(
    settings: RecordSettings | None, texts: Mapping[str, ModelText]
) -> CallRecorder | None:
    if settings is None:
        return None

    def decode(model: str, tokens: Sequence[int]) -> str:
        decoder = texts[model].decoder()
        return decoder.push(tokens) + decoder.finish()

    file = Path(settings.file)
    return CallRecorder(file, settings.max_bytes, decode if settings.text else None)


def _serving(cluster: Cluster) -> dict[str, frozenset[str]]:
    return {
        model: frozenset(name for name, entry in cluster.instances.items() if model in entry.models)
        for model in cluster.models
    }


def _router_settings(cluster: Cluster, policy: Policy | None) -> RouterSettings:
    limits, routing, on = cluster.gateway.limits, cluster.routing, cluster.ablations
    return RouterSettings(
        queue_depth=limits.queue_depth,
        queue_timeout=limits.queue_timeout,
        lease_seconds=routing.lease_seconds if on.leases else 0.0,
        policy=policy or ("residency" if on.residency_routing else "least-pressure"),
        control_window=routing.control_window,
        replica_penalty=routing.replica_penalty,
        eviction_cost=on.eviction_cost,
    )
