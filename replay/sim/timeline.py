"""What a simulated instance spent its time on, and what each of its calls waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from alipes.replay.records import Parts
from alipes.replay.runs import MemoryRecord, RoundRecord, SwitchRecord


class Activity(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    SWITCH = "switch"
    RESTORE = "restore"
    LINGER = "linger"
    IDLE = "idle"
    DOWN = "down"


@dataclass(slots=True)
class CallTimes:
    """One call at an instance, in ns: what had been spent when it was sent there, and what its own
    work took since."""

    switch_before: int
    restore_before: int
    first_token: int | None = None
    phase: str = ""
    cold: bool = False
    decode: int = 0
    switch: int = 0
    restore: int = 0


@dataclass(slots=True)
class Timeline:
    """Totals by activity in ns, the rounds they made up, and the switches."""

    instance: str
    spent: dict[Activity, int] = field(default_factory=lambda: dict.fromkeys(Activity, 0))
    calls: dict[bytes, CallTimes] = field(default_factory=dict)
    switches: list[SwitchRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    _mark: dict[Activity, int] = field(default_factory=lambda: dict.fromkeys(Activity, 0))
    _began: int = 0
    _sp: tuple[int, int] = (0, 0)

    def add(self, activity: Activity, duration: int) -> None:
        self.spent[activity] += duration

    def add_rest(self, activity: Activity, now: int) -> None:
        """All time up to now that is in no activity yet."""
        self.spent[activity] += now - sum(self.spent.values())

    def process_ended(self) -> None:
        """With it all calls that it had; its counters begin anew in the next one."""
        self.calls.clear()
        self._sp = (0, 0)

    def sent(self, call_id: bytes, switching: int, restoring: int) -> None:
        """A call arrives while a switch or restore may have been going on for so long."""
        self.calls[call_id] = CallTimes(
            self.spent[Activity.SWITCH] + switching,
            self.spent[Activity.RESTORE] + restoring,
        )

    def ended(self, call_id: bytes) -> CallTimes:
        """The call's times, with what switches and restores took of them."""
        times = self.calls.pop(call_id)
        times.switch = self.spent[Activity.SWITCH] - times.switch_before
        times.restore = self.spent[Activity.RESTORE] - times.restore_before
        return times

    def round_over(self, index: int, now: int, sp_admitted: int, sp_parked: int) -> None:
        """Round ``index`` ends; the counters are totals."""
        took = {name.value: (self.spent[name] - self._mark[name]) / 1e9 for name in Activity}
        admitted, parked = self._sp
        self.rounds.append(
            RoundRecord(
                instance=self.instance,
                index=index,
                at=self._began / 1e9,
                seconds=(now - self._began) / 1e9,
                sp_admitted=sp_admitted - admitted,
                sp_parked=sp_parked - parked,
                **took,
            )
        )
        self._mark, self._began = dict(self.spent), now
        self._sp = (sp_admitted, sp_parked)


@dataclass(frozen=True, slots=True)
class Latency:
    """A finished call at its client, in ns: intended, sent by the client, placed, ended; the
    ``prefill`` of its iterations, and of ``computed`` prompt tokens those ``recomputed`` that an
    earlier call had computed."""

    intended: int
    sent: int
    placed: int
    ended: int
    prefill: int
    computed: int
    recomputed: int


def parts_of(latency: Latency, times: CallTimes) -> Parts:
    """Where the call's seconds went; what nothing else explains is waiting for a slot."""
    share = latency.recomputed / latency.computed if latency.computed else 0.0
    recompute = round(latency.prefill * share)
    rest = (
        latency.ended
        - latency.placed
        - times.switch
        - times.restore
        - latency.prefill
        - times.decode
    )
    # Restores and prefill of others may have run beside a chunk of its own: never below zero.
    restore = max(0, times.restore + min(rest, 0))
    return Parts(
        admission=(latency.sent - latency.intended) / 1e9,
        queue=(latency.placed - latency.sent) / 1e9,
        slot=max(0, rest) / 1e9,
        switch=times.switch / 1e9,
        restore=restore / 1e9,
        recompute=recompute / 1e9,
        prefill=(latency.prefill - recompute) / 1e9,
        decode=times.decode / 1e9,
    )
