"""From timings of an engine to a hardware profile: the forms of ``contract.Estimate``, fitted.

Every point is the median of its repetitions, and errors count relative to what was measured, so
that a step of 4 ms weighs as much as a chunk of 2 s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec
import numpy as np
from scipy.optimize import nnls

from alipes.instance.contract import InstanceSettings, ModelReport
from alipes.instance.engine.protocol import HostSlabs
from alipes.replay.sim.hardware import (
    Fixed,
    Hardware,
    ModelCosts,
    Quantity,
    Rates,
    ServiceTargets,
)

NAME: Final = "this-machine"
LEAST_SECONDS: Final = 1e-9
UNSEEN_RATE: Final = 1e15
"""Bytes a second where more bytes took no longer."""
DIGITS: Final = 6
COPIES: Final = ("switch", "restore", "checkpoint")
"""Where one was not timed, as a switch with a single model, the first that was stands for it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a piece of work took once; ``features`` are what its form multiplies."""

    features: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelTimings:
    """One model on one engine. Features: of a prefill (1, tokens, sum of tokens * end position), of
    a decode iteration (1, calls, context), of copies and switches (1, bytes)."""

    report: ModelReport
    layers: int
    prefill: tuple[Timing, ...]
    decode: tuple[Timing, ...]
    restore: tuple[Timing, ...]
    checkpoint: tuple[Timing, ...]
    switch: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was timed, once or more: ``gateway`` seconds a call beside its iterations, ``loop``
    seconds between two iterations, ``build`` seconds from nothing to an engine. ``machine`` and
    ``date`` go into the source of every number."""

    settings: InstanceSettings
    machine: str
    date: str
    host: HostSlabs
    models: tuple[ModelTimings, ...]
    build: float
    gateway: tuple[float, ...]
    loop: tuple[float, ...]


class Fit(msgspec.Struct, frozen=True):
    """Coefficients of a form and how far its ``points`` lie from it, as parts of what was
    measured: at the median and at most."""

    coefficients: tuple[float, ...]
    points: int
    samples: int
    error_p50: float
    error_max: float


class Profile(msgspec.Struct, frozen=True):
    """A profile and the fits that it was made of, by what they describe."""

    hardware: Hardware
    fits: dict[str, Fit]


def fit(timings: Iterable[Timing]) -> Fit:
    """Non-negative least squares of ``seconds = coefficients . features``, relative errors, each
    point the median of its timings. Raises ValueError without timings."""
    points: dict[tuple[float, ...], list[float]] = defaultdict(list)
    for timing in timings:
        points[timing.features].append(max(timing.seconds, LEAST_SECONDS))
    if not points:
        raise ValueError("nothing was timed")
    features = np.array(list(points))
    seconds = np.array([median(values) for values in points.values()])
    scale = np.maximum(features.max(axis=0), 1.0)
    solution, _ = nnls(features / scale / seconds[:, None], np.ones(len(seconds)))
    errors = np.abs(features / scale @ solution - seconds) / seconds
    return Fit(
        coefficients=tuple(float(value) for value in solution / scale),
        points=len(points),
        samples=sum(map(len, points.values())),
        error_p50=float(np.median(errors)),
        error_max=float(errors.max()),
    )


def profile(measured: Measured) -> Profile:
    """The profile ``this-machine``. Raises ValueError where something was not timed at all."""
    fits = {
        f"{model.report.name}: {what}": fit(getattr(model, what))
        for model in measured.models
        for what in ("prefill", "decode")
    }
    for what in COPIES:
        timings = [one for model in measured.models for one in getattr(model, what)]
        if timings:
            fits[what] = fit(timings)
    return Profile(_hardware(measured, fits), fits)


def _hardware(measured: Measured, fits: dict[str, Fit]) -> Hardware:
    settings, targets = measured.settings, measured.settings.targets
    given = f"settings of instance {settings.name}"
    device = _device_bytes(measured)
    loop = median(measured.loop) if measured.loop else 0.0
    told = _Teller(measured)
    rates = _rates(told, fits)
    return Hardware(
        name=NAME,
        about=f"{measured.machine}, as the {settings.engine} engine of {settings.name} ran on"
        f" {measured.date}. Seconds, bytes, bytes a second. Iterations include"
        f" {loop * 1e3:.2f} ms that pass between two of them.",
        device_bytes=Quantity(device, source=given),
        host_bytes=Quantity(measured.host.slab_bytes * measured.host.count, source=given),
        runtime_bytes=Quantity(
            min(device - _used(model.report) for model in measured.models),
            source="what the engine's own plan leaves of device_bytes beside weights and KV",
        ),
        staging_share=Quantity(0.5, assumed="half, as nothing is staged on a CPU yet"),
        rates=rates,
        fixed=Fixed(
            switch=told.base(fits.get("switch")),
            restore=told.base(fits.get("restore")),
            relaunch=told.seconds(measured.build, 1),
        ),
        models={
            model.report.name: _costs(
                told,
                model,
                fits[f"{model.report.name}: prefill"],
                fits[f"{model.report.name}: decode"],
                loop,
                settings.block_tokens,
            )
            for model in measured.models
        },
        prefill_chunk=settings.prefill_chunk,
        max_running=settings.max_running,
        block_tokens=settings.block_tokens,
        targets=ServiceTargets(
            ttft=Quantity(targets.ttft, source=given),
            tpot=Quantity(targets.tpot, source=given),
            gamma=Quantity(targets.gamma, source=given),
        ),
        gateway_seconds=told.seconds(
            median(measured.gateway) if measured.gateway else 0.0, len(measured.gateway)
        ),
    )


def _rates(told: _Teller, fits: dict[str, Fit]) -> Rates:
    same = "device and host are the same memory here, so it is a copy like host to device"
    h2d, kv_h2d, d2h = (told.rate(fits, what) for what in COPIES)
    return Rates(
        h2d=h2d,
        d2h=d2h,
        d2d=Quantity(h2d.value, assumed=same),
        rdma=Quantity(h2d.value, assumed=same),
        kv_h2d=kv_h2d,
    )


def _costs(
    told: _Teller, model: ModelTimings, prefill: Fit, decode: Fit, loop: float, block_tokens: int
) -> ModelCosts:
    report = model.report
    stated = "what the engine reports"
    p, d = prefill.coefficients, decode.coefficients
    return ModelCosts(
        weight_bytes=Quantity(report.weight_bytes, source=stated),
        kv_token_bytes=Quantity(report.block_bytes / block_tokens, source=stated),
        prefill_base=told.seconds(p[0] + loop, prefill.samples),
        prefill_token=told.seconds(p[1], prefill.samples),
        prefill_context=told.seconds(p[2], prefill.samples),
        decode_base=told.seconds(max(d[0] + loop, LEAST_SECONDS), decode.samples),
        decode_call=told.seconds(d[1], decode.samples),
        decode_context=told.seconds(d[2], decode.samples),
        context=report.context,
        layers=model.layers,
    )


@dataclass(frozen=True, slots=True)
class _Teller:
    """Says of every number where it comes from."""

    measured: Measured

    def seconds(self, value: float, samples: int) -> Quantity:
        return Quantity(_rounded(value), source=self._source(samples))

    def base(self, fit: Fit | None) -> Quantity:
        if fit is None:
            return Quantity(0.0, assumed="not timed: there is nothing to do it with")
        return self.seconds(fit.coefficients[0], fit.samples)

    def rate(self, fits: dict[str, Fit], what: str) -> Quantity:
        """Raises ValueError where no copy was timed."""
        if what in fits:
            return Quantity(_rounded(_rate(fits[what])), source=self._source(fits[what].samples))
        other = next((name for name in COPIES if name in fits), None)
        if other is None:
            raise ValueError("no copy was timed: give the instance host_bytes, or a second model")
        return Quantity(_rounded(_rate(fits[other])), assumed=f"not timed; that of a {other}")

    def _source(self, samples: int) -> str:
        measured = self.measured
        return (
            f"measured by alipes profile on {measured.date}, {measured.machine}, {samples} samples"
        )


def _rate(fit: Fit) -> float:
    second = fit.coefficients[1]
    return 1.0 / second if second > 1.0 / UNSEEN_RATE else UNSEEN_RATE


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _used(report: ModelReport) -> int:
    """Device bytes of weights and KV."""
    return report.weight_bytes + report.kv_blocks * report.block_bytes


def _device_bytes(measured: Measured) -> int:
    """As set, or what the engine uses where weights are extra, as the fake one's are."""
    return max(measured.settings.device_bytes, *(_used(m.report) for m in measured.models))
