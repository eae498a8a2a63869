"""One engine process that writes down what its work took: the child of ``alipes profile``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from alipes.cli.cluster import load, model_folders
from alipes.gateway.config import instance_settings
from alipes.instance.calibration import calibrate
from alipes.instance.contract import InstanceSettings
from alipes.instance.driver import Emit, Loop, build_engine
from alipes.instance.engine.protocol import Engine
from alipes.instance.loop import EngineLoop
from alipes.instance.server import run_instance
from alipes.replay.sim.measure import Recording
from alipes.replay.sim.timed_scheduler import TimedScheduler


def main(config: str, name: str, out: str) -> int:
    """Serve as ``alipes instance`` does until stopped, then write a ``Recording`` to ``out``."""
    cluster = load(Path(config))
    folders = model_folders(cluster, cluster.instances[name].models)
    settings = instance_settings(cluster, name, folders, cluster.gateway.endpoint)
    built: list[tuple[Recording, TimedScheduler]] = []

    def build(settings: InstanceSettings, emit: Emit) -> tuple[Engine, Loop]:
        engine = build_engine(settings)
        scheduler = TimedScheduler(settings, engine.reports, engine.host)
        for trial in calibrate(engine, settings, time.monotonic_ns):
            scheduler.learn(trial)
        # An engine that was closed knows of no model.
        built.append((Recording(engine.reports, engine.host, _layers(settings), ()), scheduler))
        return engine, EngineLoop(engine, scheduler, emit, time.monotonic_ns)

    code = run_instance(settings, build)
    for recording, scheduler in built:
        whole = msgspec.structs.replace(
            recording, timings=scheduler.recorded(), exchange=scheduler.exchanges
        )
        Path(out).write_bytes(msgspec.json.encode(whole))
    return code


def _layers(settings: InstanceSettings) -> dict[str, int]:
    """Where the engine has real ones."""
    if settings.engine != "native":
        return {}
    from alipes.instance.engine.native.shape import shape_on

    shapes = {model.name: shape_on(settings.device, model) for model in settings.models}
    return {name: len(shape.states) for name, shape in shapes.items()}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
