"""What a call is told that will not be served, or has waited too long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import ceil

from alipes.gateway.routing.admission import misfit
from alipes.gateway.routing.decision import CallShape, Reject, RejectKind, RouterSettings, Why
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.predict import backlog_seconds
from alipes.gateway.routing.profiles import CostProfiles


def unknown(call: CallShape, known: Iterable[str]) -> Reject:
    reason = f"unknown model {call.model!r}; known: {', '.join(sorted(known))}"
    return Reject(call.call_id, RejectKind.UNKNOWN_MODEL, reason)


def too_large(call: CallShape, serving: Iterable[InstanceState]) -> Reject | None:
    """A call that none of the instances can ever hold; None while one has not told."""
    misfits = []
    for instance in serving:
        if instance.hello is None or call.model not in instance.reports:
            return None
        misfits.append(misfit_of(instance, call))
    if not misfits or not all(misfits):
        return None
    return Reject(call.call_id, RejectKind.TOO_LARGE, misfits[0])


def misfit_of(instance: InstanceState, call: CallShape) -> str:
    """Why the call can never run on an instance that has told what it holds; empty when it can."""
    report = instance.reports[call.model]
    size = instance.hello.block_tokens if instance.hello is not None else 1
    return misfit(report, size, call.prompt_tokens, call.max_tokens)


def draining(call: CallShape, serving: Collection[InstanceState]) -> Reject | None:
    """A call whose model is on instances that all drain: none takes it before it starts anew."""
    names = [instance.name for instance in serving if instance.up and instance.drains]
    if not names or any(instance.name not in names for instance in serving):
        return None
    reason = f"{call.model} is not served now: {', '.join(names)} drained"
    return Reject(call.call_id, RejectKind.DRAINING, reason)


def overloaded(call: CallShape, waiting: int, after: float) -> Reject:
    text = f"{waiting} calls wait already; try again in {after:.0f} s"
    return Reject(call.call_id, RejectKind.OVERLOADED, text, after)


def timed_out(
    call: CallShape, conditions: Mapping[str, Why], settings: RouterSettings, after: float
) -> Reject:
    seconds = f"within {settings.queue_timeout:g} s"
    if Why.OK in conditions.values():
        text = f"no instance had room {seconds}"
    else:
        listed = ", ".join(f"{name} is {why}" for name, why in conditions.items())
        text = f"no instance could take {call.model} {seconds}: {listed}"
    return Reject(call.call_id, RejectKind.TIMEOUT, text, after)


def retry_after(
    serving: Iterable[InstanceState], profiles: CostProfiles, settings: RouterSettings, now: int
) -> float:
    """Whole seconds, at least 1, until the first instance has served what it has; the queue's
    timeout where none can be asked."""
    backlogs = []
    for instance in serving:
        shown, hello = instance.snapshot, instance.hello
        if shown is None or hello is None:
            continue
        if instance.condition(settings, now) is not Why.OK:
            continue
        costs = profiles.of(instance.name)
        chunk, rows = hello.prefill_chunk, hello.max_running
        seconds = backlog_seconds(instance.loads(), costs, shown.active_model, chunk, rows)
        backlogs.append(seconds)
    seconds = min(backlogs, default=settings.queue_timeout)
    return float(max(1, ceil(min(seconds, settings.queue_timeout))))
