from __future__ import annotations

from msgspec.structs import replace

from alipes.gateway.telemetry.metrics import Metrics
from alipes.instance.contract import (
    PROTOCOL,
    Content,
    Hello,
    MemoryMap,
    ModelMap,
    Pool,
    Region,
    Targets,
)

REGIONS = (
    Region(Content.WEIGHTS, 0, 50),
    Region(Content.UNUSED, 50, 14),
    Region(Content.KV, 64, 20, (0,), 2, 10),
    Region(Content.UNUSED, 84, 1),
)
HELLO = Hello(
    PROTOCOL, "one", "1", Pool.HOT, "native", "cpu", 64, 16, 256, 512, Targets(), (), 7,
    MemoryMap(85, (ModelMap("m", REGIONS),), backend="mapped", switching="remap"),
    {"attend": "cpu_attention", "linear": "cpu"},
)  # fmt: skip


def lines(metrics: Metrics) -> set[str]:
    facts = ("alipes_instance_info{", "alipes_instance_kernel_", "alipes_instance_arena_")
    return {line for line in metrics.render().decode().splitlines() if line.startswith(facts)}


def test_memory_and_kernels_of_an_instance_are_told() -> None:
    metrics = Metrics(["m"], ["one"])
    metrics.of_fleet(HELLO, 0)
    arena = 'alipes_instance_arena_bytes{content="%s",instance="one",model="m"} %s'
    kernel = 'alipes_instance_kernel_info{instance="one",operation="%s",variant="%s"} 1.0'
    assert lines(metrics) == {
        'alipes_instance_info{backend="mapped",device="cpu",engine="native",instance="one",'
        'switching="remap"} 1.0',
        kernel % ("attend", "cpu_attention"),
        kernel % ("linear", "cpu"),
        arena % ("weights", "50.0"),
        arena % ("unused", "15.0"),
        arena % ("kv", "20.0"),
    }


def test_an_instance_that_comes_back_otherwise_is_told_as_it_is() -> None:
    metrics = Metrics(["m"], ["one"])
    metrics.of_fleet(HELLO, 0)
    metrics.of_fleet(replace(HELLO, device="cuda", memory=MemoryMap(), kernels={}), 0)
    [line] = lines(metrics)
    assert 'device="cuda"' in line


def test_what_instances_say_of_themselves_is_bounded() -> None:
    metrics = Metrics(["m"], ["one"])
    for number in range(300):
        kernels = {f"operation-{number}": f"variant-{number}"}
        regions = (ModelMap(f"rogue-{number}", REGIONS),)
        metrics.of_fleet(replace(HELLO, kernels=kernels, memory=MemoryMap(1, regions)), 0)
        metrics.of_fleet(replace(HELLO, name=f"rogue-{number}", device=f"device-{number}"), 0)
    assert len(lines(metrics)) < 20
    assert any('device="other"' in line for line in lines(metrics))
    assert "rogue" not in "".join(lines(metrics))
