"""Every call of an instance, by id and by model."""

from __future__ import annotations

from alipes.instance.contract import (
    Failed,
    FailureClass,
    InstanceSettings,
    ModelReport,
    Submit,
)
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.admission import invalid
from alipes.instance.scheduler.host import HostKv
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import place
from alipes.instance.scheduler.sequence import CallState, Sequence, given_keys
from alipes.instance.scheduler.slot import NANOSECONDS
from alipes.instance.scheduler.tally import Tally


class CallTable:
    """The one owner of which calls are here. A call is in its model's queue, on the device, or on
    the host; ``end`` takes it out of wherever that is."""

    def __init__(
        self,
        settings: InstanceSettings,
        reports: tuple[ModelReport, ...],
        host: HostKv,
        tally: Tally,
    ) -> None:
        size = settings.block_tokens
        self.models = {
            report.name: ModelState(
                report, settings, CostProfile.prior(report, settings.device, size)
            )
            for report in reports
        }
        self.last_submitted = b""
        self.taken = 0
        self._host = host
        self._settings = settings
        self._reports = {report.name: report for report in reports}
        self._calls: dict[bytes, Sequence] = {}
        self._tally = tally

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, call_id: bytes) -> Sequence:
        return self._calls[call_id]

    def __contains__(self, call_id: bytes) -> bool:
        return call_id in self._calls

    def all(self) -> list[Sequence]:
        return list(self._calls.values())

    def ready(self) -> list[ModelState]:
        """Models with work, in their configured order."""
        return [state for state in self.models.values() if state.has_work]

    def add(self, call: Submit, active: ActiveModel | None, now: int) -> Failed | None:
        """Queue a call, or say why not. The number of those taken in is a call's serial."""
        self.last_submitted = call.call_id
        failed = self._refuse(call)
        if failed is not None:
            self._tally.failed += 1
            return failed
        level = int(self._settings.targets.ttft * NANOSECONDS)
        order = place(now, call.priority, level, self.taken)
        self.taken += 1
        sequence = Sequence.of(call, now, order)
        sequence.keys = given_keys(call, self._settings.block_tokens)
        self._calls[call.call_id] = sequence
        state = self.models[call.model]
        if not state.has_work:
            state.since = now
        state.waiting.add(sequence)
        state.returns.arrived(call.branch, now)
        if active is not None and active.state is state:
            active.expect(sequence)
        else:
            state.expect_host(self._host, sequence)
        return None

    def _refuse(self, call: Submit) -> Failed | None:
        if call.call_id in self._calls:
            reason = f"call id {call.call_id.hex()} is already in use"
            return Failed(call.call_id, FailureClass.INVALID, reason, "call_id")
        failed = invalid(call, self._reports, self._settings)
        if failed is not None:
            return failed
        waiting = sum(len(state.waiting) for state in self.models.values())
        if waiting < self._settings.max_waiting:
            return None
        reason = f"{waiting} calls wait here already; try again later"
        return Failed(call.call_id, FailureClass.OVERLOADED, reason)

    def end(self, call: Sequence, active: ActiveModel | None) -> None:
        """Forget a call and free all that it holds here."""
        if call.state is CallState.WAITING:
            self.models[call.call.model].waiting.remove(call)
        elif call.state is CallState.SAVED:
            self._forget_saved(call)
        elif active is not None:
            active.remove(call)
        call.move(CallState.ENDED)
        del self._calls[call.call.call_id]

    def fail(
        self, call: Sequence, active: ActiveModel | None, failure: FailureClass, reason: str
    ) -> Failed:
        self.end(call, active)
        self._tally.failed += 1
        return Failed(call.call.call_id, failure, reason)

    def abandon(self, failure: FailureClass, reason: str) -> tuple[Failed, ...]:
        """Forget every call at once, without freeing anything: the process ends."""
        failed = tuple(Failed(call_id, failure, reason) for call_id in self._calls)
        self._calls.clear()
        return failed

    def requeue_saved(self, call: Sequence) -> None:
        """The call's state was not saved after all: it is recomputed from its tokens."""
        state = self.models[call.call.model]
        self._forget_saved(call)
        call.computed = 0
        call.leave_device()
        call.move(CallState.WAITING)
        state.waiting.add(call)
        state.expect_host(self._host, call)
        self._tally.preempted += 1

    def _forget_saved(self, call: Sequence) -> None:
        del self.models[call.call.model].saved[call.call.call_id]
        self._host.forget(call)
