"""From timings of an instance that served to a hardware profile: the forms of
``contract.Estimate``, fitted.

An instance is timed while it serves, with its gateway and clients beside it, since that is what a
simulated one stands for: on a small machine they slow the engine down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from alipes.instance.contract import InstanceSettings, ModelReport
from alipes.instance.engine.protocol import HostSlabs
from alipes.instance.memory.staging_plan import GRANULE, frame_bytes
from alipes.replay.sim.fitting import LEAST_SECONDS, Fit, fit, with_slope
from alipes.replay.sim.hardware import (
    Fixed,
    Hardware,
    ModelCosts,
    Quantity,
    Rates,
    ServiceTargets,
    quantities,
    unit,
)
from alipes.replay.sim.telling import USUAL, Teller
from alipes.replay.stats import nearest_rank

NAME: Final = "this-machine"


class Kind(StrEnum):
    """What a piece of work is, and what its form multiplies: (1, tokens, sum of tokens times end
    position) of a prefill iteration, (1, calls, context) of a decode iteration, (1, bytes) of the
    others. Weights come from the host in a switch, from the device in one that is staged."""

    PREFILL = "prefill"
    DECODE = "decode"
    SWITCH = "switch"
    STAGED = "staged"
    RESTORE = "restore"
    CHECKPOINT = "checkpoint"


COPIES: Final = {Kind.SWITCH: "h2d", Kind.RESTORE: "kv_h2d", Kind.CHECKPOINT: "d2h"}
"""From and to the host: all models together, each with its rate. Where one was not timed, the rate
of the first that was stands for it."""
RATES: Final = {**COPIES, Kind.STAGED: "d2d"}
FORMS: Final = {
    Kind.PREFILL: ("prefill_base", "prefill_token", "prefill_context"),
    Kind.DECODE: ("decode_base", "decode_call", "decode_context"),
}
"""What the coefficients of a model's iterations are called."""


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one piece of work of a model took, in seconds."""

    model: str
    kind: Kind
    features: tuple[float, ...]
    seconds: float


class Recording(msgspec.Struct, frozen=True):
    """An instance that served: what it is made of, and what all its work took. ``layers`` are
    those with KV, one where it is not said. Weights ``exchange`` places where they can."""

    reports: tuple[ModelReport, ...]
    host: HostSlabs
    layers: dict[str, int]
    timings: tuple[Timing, ...]
    exchange: bool = False


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


class Profile(msgspec.Struct, frozen=True):
    """A profile and the fits that it was made of, by what they describe. ``remarks`` are a line for
    each number that the timings do not tell, and what stands in its place."""

    hardware: Hardware
    fits: dict[str, Fit]
    remarks: tuple[str, ...] = ()


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


def profile(measured: Measured) -> Profile:
    """The profile ``this-machine``. Raises ValueError where something was not timed at all."""
    timings = measured.recording.timings
    fits = {}
    for report in measured.recording.reports:
        for kind in (Kind.PREFILL, Kind.DECODE):
            own = [one for one in timings if (one.model, one.kind) == (report.name, kind)]
            if not own:
                raise ValueError(f"no {kind} of {report.name} was timed")
            fits[f"{report.name}: {kind}"] = fitted(own)
    copies = [one for one in timings if one.kind in RATES and one.features[1] > 0]
    fits |= _copies([one for one in copies if one.kind is not Kind.STAGED], COPIES)
    fits |= _copies([one for one in copies if one.kind is Kind.STAGED], (Kind.STAGED,))
    hardware = _hardware(measured, fits)
    return Profile(hardware, fits, tuple(_remarks(hardware, fits)))


def fitted(timings: Sequence[Timing]) -> Fit:
    """The fit of timings that are of one form. Raises ValueError without any."""
    return fit([one.features for one in timings], [one.seconds for one in timings])


def _copies(timings: Sequence[Timing], kinds: Iterable[Kind]) -> dict[str, Fit]:
    """By kind. Where the timings do not tell a rate, more bytes having taken no longer or all
    having been the same, it is no higher than what a copy of any kind came to."""
    found = ([one for one in timings if one.kind is kind] for kind in kinds)
    timed = [own for own in found if own]
    fastest = max(map(_fastest, timed), default=0.0)
    fits = {}
    for own in timed:
        told = fitted(own)
        if not told.told(1):
            slope = max(told.coefficients[1], 1.0 / fastest)
            rows, seconds = [one.features for one in own], [one.seconds for one in own]
            told = with_slope(rows, seconds, slope, told)
        fits[own[0].kind.value] = told
    return fits


def _fastest(copies: Sequence[Timing]) -> float:
    """Bytes a second that one in ten reached."""
    rates = [one.features[1] / max(one.seconds, LEAST_SECONDS) for one in copies]
    return nearest_rank(rates, USUAL[1]) or 0.0


def _remarks(hardware: Hardware, fits: dict[str, Fit]) -> Iterator[str]:
    numbers = dict(quantities(hardware))
    for what, found in fits.items():
        model, _, kind = what.rpartition(": ")
        if model:
            names = [f"models.{model}.{name}" for name in FORMS[Kind(kind)]]
        else:
            base = [f"fixed.{kind}"] if Kind(kind) in COPIES else []
            names = [*base, f"rates.{RATES[Kind(kind)]}"]
        for place, name in enumerate(names, len(found.coefficients) - len(names)):
            if not found.told(place):
                number = numbers[name]
                most = f", at most {number.high:g}" if number.high else ""
                told = f"{name}: {number.value:g} {unit(name)}{most}"
                samples = f"{found.samples} sample{'s' * (found.samples != 1)} of {what}"
                yield f"{told}; {number.assumed} ({samples})"


def _hardware(measured: Measured, fits: dict[str, Fit]) -> Hardware:
    settings, targets, recording = measured.settings, measured.settings.targets, measured.recording
    given = f"settings of instance {settings.name}"
    device = max(settings.device_bytes, *map(_used, recording.reports))
    told = Teller(f"measured by alipes profile on {measured.date}, {measured.machine}")
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
        staging_share=Quantity(0.25, assumed="what a writer takes at most; it is not measured"),
        rates=_rates(told, fits),
        fixed=Fixed(
            switch=_base(told, fits, Kind.SWITCH),
            restore=_base(told, fits, Kind.RESTORE),
            checkpoint=_base(told, fits, Kind.CHECKPOINT),
            relaunch=told.times([measured.launch]),
        ),
        models={
            report.name: _costs(
                told,
                report,
                settings.block_tokens,
                recording.layers.get(report.name, 1),
                fits[f"{report.name}: {Kind.PREFILL}"],
                fits[f"{report.name}: {Kind.DECODE}"],
            )
            for report in recording.reports
        },
        staging_chunk=_chunk(recording),
        exchange=recording.exchange,
        prefill_chunk=settings.prefill_chunk,
        max_running=settings.max_running,
        block_tokens=settings.block_tokens,
        targets=ServiceTargets(
            ttft=Quantity(targets.ttft, source=given),
            tpot=Quantity(targets.tpot, source=given),
            gamma=Quantity(targets.gamma, source=given),
        ),
        gateway_seconds=told.times(measured.gateway),
    )


def _rates(told: Teller, fits: dict[str, Fit]) -> Rates:
    same = "device and host are the same memory here, so it is a copy like host to device"
    h2d, kv_h2d, d2h = (_rate(told, fits, what) for what in COPIES)
    unstaged = Quantity(h2d.value, assumed=f"nothing was staged; {same}")
    return Rates(
        h2d=h2d,
        d2h=d2h,
        d2d=told.rate(fits[Kind.STAGED]) if Kind.STAGED in fits else unstaged,
        rdma=Quantity(h2d.value, assumed=same),
        kv_h2d=kv_h2d,
    )


def _costs(
    told: Teller, report: ModelReport, block: int, layers: int, prefill: Fit, decode: Fit
) -> ModelCosts:
    stated = "what the engine reports"
    base, call, context = (told.coefficient(decode, place) for place in range(3))
    return ModelCosts(
        weight_bytes=Quantity(report.weight_bytes, source=stated),
        kv_token_bytes=Quantity(report.block_bytes / block, source=stated),
        prefill_base=told.coefficient(prefill, 0),
        prefill_token=told.coefficient(prefill, 1),
        prefill_context=told.coefficient(prefill, 2),
        decode_base=msgspec.structs.replace(base, value=max(base.value, LEAST_SECONDS)),
        decode_call=call,
        decode_context=context,
        context=report.context,
        layers=layers,
    )


def _base(told: Teller, fits: dict[str, Fit], kind: Kind) -> Quantity:
    """What comes with every copy of a kind."""
    if kind in fits:
        return told.coefficient(fits[kind], 0)
    return Quantity(0.0, assumed="not timed: it was never needed")


def _rate(told: Teller, fits: dict[str, Fit], kind: Kind) -> Quantity:
    """Raises ValueError where no copy was timed."""
    if kind in fits:
        return told.rate(fits[kind])
    other = next((name for name in COPIES if name in fits), None)
    if other is None:
        raise ValueError("no copy was timed")
    return Quantity(told.rate(fits[other]).value, assumed=f"not timed; that of a {other}")


def _chunk(recording: Recording) -> int:
    """As the engine cuts weights where they exchange places."""
    layers = (
        report.kv_blocks * report.block_bytes // recording.layers.get(report.name, 1)
        for report in recording.reports
    )
    weights = max(report.weight_bytes for report in recording.reports)
    return frame_bytes(min(layers), weights, GRANULE)


def _used(report: ModelReport) -> int:
    """Device bytes of weights and KV."""
    return report.weight_bytes + report.kv_blocks * report.block_bytes
