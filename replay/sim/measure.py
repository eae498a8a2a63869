"""From timings of an instance that served to a hardware profile: the forms of
``contract.Estimate``, fitted.

An instance is timed while it serves, with its gateway and clients beside it, since that is what a
simulated one stands for: on a small machine they slow the engine down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
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
from alipes.replay.stats import nearest_rank

NAME: Final = "this-machine"
LEAST_SECONDS: Final = 1e-9
UNSEEN_RATE: Final = 1e15
"""Bytes a second where more bytes took no longer."""
DIGITS: Final = 6
REWEIGHTED: Final = 5


class Kind(StrEnum):
    """What a piece of work is, and what its form multiplies: (1, tokens, sum of tokens times end
    position) of a prefill iteration, (1, calls, context) of a decode iteration, (1, bytes) of the
    others."""

    PREFILL = "prefill"
    DECODE = "decode"
    SWITCH = "switch"
    RESTORE = "restore"
    CHECKPOINT = "checkpoint"


COPIES: Final = (Kind.SWITCH, Kind.RESTORE, Kind.CHECKPOINT)
"""All models together. Where one was not timed, the rate of the first that was stands for it."""


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one piece of work of a model took, in seconds."""

    model: str
    kind: Kind
    features: tuple[float, ...]
    seconds: float


class Recording(msgspec.Struct, frozen=True):
    """An instance that served: what it is made of, and what all its work took. ``layers`` are
    those with KV, one where it is not said."""

    reports: tuple[ModelReport, ...]
    host: HostSlabs
    layers: dict[str, int]
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A recording and what was timed outside the instance: ``launch`` seconds from nothing to an
    instance that serves, ``gateway`` seconds of calls beside their iterations. ``machine`` and
    ``date`` go into the source of every number."""

    settings: InstanceSettings
    machine: str
    date: str
    recording: Recording
    launch: float
    gateway: tuple[float, ...]


class Fit(msgspec.Struct, frozen=True):
    """Coefficients of a form and how far its ``samples`` lie from it, as parts of what was
    measured: at the median and the 90th percentile."""

    coefficients: tuple[float, ...]
    samples: int
    error_p50: float
    error_p90: float


class Profile(msgspec.Struct, frozen=True):
    """A profile and the fits that it was made of, by what they describe."""

    hardware: Hardware
    fits: dict[str, Fit]


def merged(measured: Sequence[Measured]) -> Measured:
    """Several measurements of one instance as one."""
    first = measured[0]
    timings = tuple(timing for one in measured for timing in one.recording.timings)
    return replace(
        first,
        recording=msgspec.structs.replace(first.recording, timings=timings),
        launch=sum(one.launch for one in measured) / len(measured),
        gateway=tuple(seconds for one in measured for seconds in one.gateway),
    )


def fit(timings: Sequence[Timing]) -> Fit:
    """Non-negative least squares of ``seconds = coefficients . features``, errors relative to what
    the form says, so that it gives the mean of noisy timings. Raises ValueError without any."""
    if not timings:
        raise ValueError("nothing was timed")
    features = np.array([timing.features for timing in timings])
    seconds = np.maximum([timing.seconds for timing in timings], LEAST_SECONDS)
    scale = np.maximum(features.max(axis=0), 1.0)
    scaled, typical = features / scale, seconds
    for _ in range(REWEIGHTED):
        solution, _ = nnls(scaled / typical[:, None], seconds / typical)
        typical = np.maximum(scaled @ solution, LEAST_SECONDS)
    errors = (np.abs(typical - seconds) / seconds).tolist()
    return Fit(
        coefficients=tuple(float(value) for value in solution / scale),
        samples=len(timings),
        error_p50=nearest_rank(errors, 50) or 0.0,
        error_p90=nearest_rank(errors, 90) or 0.0,
    )


def profile(measured: Measured) -> Profile:
    """The profile ``this-machine``. Raises ValueError where something was not timed at all."""
    timings = measured.recording.timings
    fits = {}
    for report in measured.recording.reports:
        for kind in (Kind.PREFILL, Kind.DECODE):
            own = [one for one in timings if (one.model, one.kind) == (report.name, kind)]
            if not own:
                raise ValueError(f"no {kind} of {report.name} was timed")
            fits[f"{report.name}: {kind}"] = fit(own)
    for kind in COPIES:
        if copies := [one for one in timings if one.kind is kind]:
            fits[kind.value] = fit(copies)
    return Profile(_hardware(measured, fits), fits)


def _hardware(measured: Measured, fits: dict[str, Fit]) -> Hardware:
    settings, targets, recording = measured.settings, measured.settings.targets, measured.recording
    given = f"settings of instance {settings.name}"
    device = max(settings.device_bytes, *map(_used, recording.reports))
    told = _Teller(measured)
    return Hardware(
        name=NAME,
        about=f"{measured.machine}: the {settings.engine} engine of {settings.name} while it"
        f" served, {measured.date}. Seconds, bytes, bytes a second.",
        device_bytes=Quantity(device, source=given),
        host_bytes=Quantity(recording.host.slab_bytes * recording.host.count, source=given),
        runtime_bytes=Quantity(
            min(device - _used(report) for report in recording.reports),
            source="what weights and KV leave of device_bytes",
        ),
        staging_share=Quantity(0.5, assumed="half; nothing is staged on a CPU yet"),
        rates=_rates(told, fits),
        fixed=Fixed(
            switch=told.base(fits, Kind.SWITCH),
            restore=told.base(fits, Kind.RESTORE),
            checkpoint=told.base(fits, Kind.CHECKPOINT),
            relaunch=told.seconds(measured.launch, 1),
        ),
        models={
            report.name: _costs(
                told,
                report,
                recording.layers.get(report.name, 1),
                fits[f"{report.name}: {Kind.PREFILL}"],
                fits[f"{report.name}: {Kind.DECODE}"],
            )
            for report in recording.reports
        },
        prefill_chunk=settings.prefill_chunk,
        max_running=settings.max_running,
        block_tokens=settings.block_tokens,
        targets=ServiceTargets(
            ttft=Quantity(targets.ttft, source=given),
            tpot=Quantity(targets.tpot, source=given),
            gamma=Quantity(targets.gamma, source=given),
        ),
        gateway_seconds=told.seconds(median(measured.gateway), len(measured.gateway)),
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
    told: _Teller, report: ModelReport, layers: int, prefill: Fit, decode: Fit
) -> ModelCosts:
    stated = "what the engine reports"
    p, d = prefill.coefficients, decode.coefficients
    return ModelCosts(
        weight_bytes=Quantity(report.weight_bytes, source=stated),
        kv_token_bytes=Quantity(report.block_bytes / told.block_tokens, source=stated),
        prefill_base=told.seconds(p[0], prefill.samples),
        prefill_token=told.seconds(p[1], prefill.samples),
        prefill_context=told.seconds(p[2], prefill.samples),
        decode_base=told.seconds(max(d[0], LEAST_SECONDS), decode.samples),
        decode_call=told.seconds(d[1], decode.samples),
        decode_context=told.seconds(d[2], decode.samples),
        context=report.context,
        layers=layers,
    )


@dataclass(frozen=True, slots=True)
class _Teller:
    """Says of every number where it comes from."""

    measured: Measured

    @property
    def block_tokens(self) -> int:
        return self.measured.settings.block_tokens

    def seconds(self, value: float, samples: int) -> Quantity:
        return Quantity(_rounded(value), source=self._source(samples))

    def base(self, fits: dict[str, Fit], kind: Kind) -> Quantity:
        """What comes with every copy of a kind."""
        if kind in fits:
            return self.seconds(fits[kind].coefficients[0], fits[kind].samples)
        return Quantity(0.0, assumed="not timed: it was never needed")

    def rate(self, fits: dict[str, Fit], kind: Kind) -> Quantity:
        """Raises ValueError where no copy was timed."""
        if kind in fits:
            return Quantity(_rate(fits[kind]), source=self._source(fits[kind].samples))
        other = next((name for name in COPIES if name in fits), None)
        if other is None:
            raise ValueError("no copy was timed")
        return Quantity(_rate(fits[other]), assumed=f"not timed; that of a {other}")

    def _source(self, samples: int) -> str:
        measured = self.measured
        return (
            f"measured by alipes profile on {measured.date}, {measured.machine}, {samples} samples"
        )


def _rate(fit: Fit) -> float:
    second = fit.coefficients[1]
    return _rounded(1.0 / second if second > 1.0 / UNSEEN_RATE else UNSEEN_RATE)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _used(report: ModelReport) -> int:
    """Device bytes of weights and KV."""
    return report.weight_bytes + report.kv_blocks * report.block_bytes
