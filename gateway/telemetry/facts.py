"""Metrics of what instances say of themselves once, when they connect."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from alipes.gateway.telemetry.labels import BoundedLabel
from alipes.instance.contract import Hello

_LEARNED: Final = 256


class FactGauges:
    """Engine, memory and kernels of each instance; what an earlier process said is forgotten."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._info = Gauge(
            "alipes_instance_info", "1 for the engine, device and memory of the instance.",
            ["instance", "engine", "device", "backend", "switching"], registry=registry,
        )  # fmt: skip
        self._kernel = Gauge(
            "alipes_instance_kernel_info", "1 for the variant of each kernel in use.",
            ["instance", "operation", "variant"], registry=registry,
        )  # fmt: skip
        self._arena = Gauge(
            "alipes_instance_arena_bytes", "Device bytes by content while the model is active.",
            ["instance", "model", "content"], registry=registry,
        )  # fmt: skip
        self._word = BoundedLabel(learn=_LEARNED)
        self._set: defaultdict[str, list[tuple[Gauge, tuple[str, ...]]]] = defaultdict(list)

    def update(self, instance: str, hello: Hello, model_label: BoundedLabel) -> None:
        """``instance`` is a label."""
        for gauge, labels in self._set.pop(instance, []):
            gauge.remove(*labels)
        memory = hello.memory
        words = (hello.engine, hello.device, memory.backend, memory.switching)
        self._put(self._info, (instance, *map(self._word, words)), 1)
        for operation, variant in hello.kernels.items():
            self._put(self._kernel, (instance, self._word(operation), self._word(variant)), 1)
        for model in memory.models:
            nbytes = Counter[str]()
            for region in model.regions:
                nbytes[region.content.value] += region.nbytes
            for content, size in nbytes.items():
                self._put(self._arena, (instance, model_label(model.model), content), size)

    def _put(self, gauge: Gauge, labels: tuple[str, ...], value: float) -> None:
        if (gauge, labels) not in self._set[labels[0]]:
            self._set[labels[0]].append((gauge, labels))
        gauge.labels(*labels).set(value)
