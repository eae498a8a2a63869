"""``alipes inspect``: what running instances hold where, and with which kernels they compute."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from alipes.cli.admin import KeyOption, ask
from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, JsonOption, load
from alipes.cli.instances import entry_of
from alipes.cli.memory import show_kernels, show_map
from alipes.cli.output import CommandError, print_json, reported, say
from alipes.instance.contract import MemoryMap


class Running(msgspec.Struct, frozen=True):
    """What the gateway knows of one instance."""

    name: str
    engine: str
    device: str
    active_model: str
    memory: MemoryMap
    kernels: dict[str, str]


def inspect(
    name: Annotated[
        str, typer.Argument(metavar="[INSTANCE]", help="All that are connected when none is named")
    ] = "",
    config: ConfigOption = DEFAULT_FILE,
    api_key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the memory map and the kernels of instances that run now."""
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
    for instance in found:
        _show(instance)


def _running(state: dict[str, dict[str, object]]) -> Running:
    hello, snapshot = state["hello"], state["snapshot"] or {}
    known = {"active_model": snapshot.get("active_model", ""), **hello}
    return msgspec.convert(known, Running)


def _show(instance: Running) -> None:
    memory = instance.memory
    under = f", memory {memory.backend}, switching {memory.switching}" if memory.backend else ""
    active = f"active: {instance.active_model or 'no model'}"
    title = f"{instance.name} ({instance.engine} on {instance.device}{under}), {active}"
    show_map(title, memory)
    if instance.kernels:
        show_kernels(instance.kernels)
    say("")
