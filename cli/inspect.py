"""``alipes inspect``: what running instances hold where, what their switches take, and with which
kernels they compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from alipes.cli.admin import KeyOption, ask
from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, JsonOption, load
from alipes.cli.instances import entry_of
from alipes.cli.memory import show_kernels, show_map
from alipes.cli.output import CommandError, print_json, print_table, reported, say
from alipes.instance.contract import MemoryMap


class Arrivals(msgspec.Struct, frozen=True):
    """How often weights came by one path; seconds of one on average, taken and predicted."""

    count: int
    mean_seconds: float
    mean_predicted_seconds: float


class Staged(msgspec.Struct, frozen=True):
    """Bytes of weights on the device of models that are not active; ``target`` is being staged, for
    which ``slack`` bytes more could be used."""

    covered: dict[str, int] = {}
    target: str = ""
    slack: int = 0


class Held(msgspec.Struct, frozen=True):
    """Device KV in blocks of the active model, host KV in bytes."""

    total: int
    free: int
    cached: int
    held: int
    host_used: int
    host_held: int
    host_total: int


class Live(msgspec.Struct, frozen=True):
    """Of the latest snapshot. ``switches`` are those since the instance started, by path;
    ``mean_turn_seconds`` is from the last iteration before one to the first after it."""

    switches: dict[str, Arrivals]
    mean_turn_seconds: float
    staging: Staged
    kv: Held


class Running(msgspec.Struct, frozen=True):
    """What the gateway knows of one instance; ``live`` is None before its first snapshot."""

    name: str
    engine: str
    device: str
    active_model: str
    block_tokens: int
    memory: MemoryMap
    kernels: dict[str, str]
    live: Live | None = None


def inspect(
    name: Annotated[
        str, typer.Argument(metavar="[INSTANCE]", help="All that are connected when none is named")
    ] = "",
    config: ConfigOption = DEFAULT_FILE,
    api_key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the memory map, live figures and the kernels of instances that run now."""
    with reported():
        cluster = load(config)
        if name:
            entry_of(cluster, config, name)
        answer = ask(cluster.gateway, api_key, "GET", "/admin/instances")
        found = [
            _running(state)
            for state in answer["instances"]
            if state["connected"] and name in ("", state["name"])
        ]
        if not found:
            raise CommandError(f"{name or 'no instance'} is {'not ' if name else ''}connected")
    if as_json:
        print_json(found)
        return
    dtypes = {model: entry.dtype for model, entry in cluster.models.items()}
    for instance in found:
        _show(instance, dtypes)


def _running(state: dict[str, Any]) -> Running:
    hello, snapshot = state["hello"], state["snapshot"]
    known = {"active_model": "", **hello}
    if snapshot:
        known |= {"active_model": snapshot["active_model"], "live": _live(snapshot)}
    return msgspec.convert(known, Running)


def _live(snapshot: dict[str, Any]) -> Live:
    counters = snapshot["counters"]
    taken, predicted = counters["path_seconds"], counters["predicted_seconds"]
    switches = {
        path: Arrivals(count, taken.get(path, 0.0) / count, predicted.get(path, 0.0) / count)
        for path, count in sorted(counters["switch_paths"].items())
        if count
    }
    turn = counters["turn_seconds"] / max(1, counters["switches"])
    staging, kv = snapshot["staging"], snapshot["occupancy"]
    return Live(switches, turn, msgspec.convert(staging, Staged), msgspec.convert(kv, Held))


def _show(instance: Running, dtypes: Mapping[str, str]) -> None:
    memory = instance.memory
    under = f", memory {memory.backend}, switching {memory.switching}" if memory.backend else ""
    active = f"active: {instance.active_model or 'no model'}"
    title = f"{instance.name} ({instance.engine} on {instance.device}{under}), {active}"
    show_map(title, memory, instance.block_tokens, dtypes)
    if instance.live is not None:
        _show_live(instance.live)
    if instance.kernels:
        show_kernels(instance.kernels)
    say("")


def _show_live(live: Live) -> None:
    columns = ("path", "count", "seconds", "predicted")
    rows = [
        (path, f"{one.count:,}", f"{one.mean_seconds:.4f}", f"{one.mean_predicted_seconds:.4f}")
        for path, one in live.switches.items()
    ]
    title = f"switches: mean seconds of weights; of a whole turn {live.mean_turn_seconds:.4f}"
    print_table(title, columns, rows, columns[:1])
    kv, staging = live.kv, live.staging
    held = [f"{model} {nbytes:,} bytes" for model, nbytes in sorted(staging.covered.items())]
    following = f" for {staging.target}" if staging.target else ""
    say(f"staged: {', '.join(held) or 'nothing'}; slack {staging.slack:,} bytes{following}")
    say(f"device KV: {kv.total:,} blocks: {kv.free:,} free, {kv.cached:,} cached, {kv.held:,} held")
    say(f"host KV: {kv.host_total:,} bytes: {kv.host_used:,} used, {kv.host_held:,} of them held")
