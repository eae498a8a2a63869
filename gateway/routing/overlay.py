"""The in-flight overlay of one instance: calls sent that its state cannot show yet (4.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from alipes.instance.contract import Load


@dataclass(frozen=True, slots=True)
class Charge:
    """What one call adds to the load of its model on one instance, in tokens. Of the prompt,
    ``device_tokens`` and ``host_tokens`` are there already; the first ``known_tokens`` an earlier
    call of the branch has computed somewhere."""

    model: str
    prompt_tokens: int
    output_tokens: int
    device_tokens: int = 0
    host_tokens: int = 0
    known_tokens: int = 0

    @property
    def present_tokens(self) -> int:
        return self.device_tokens + self.host_tokens

    @property
    def compute_tokens(self) -> int:
        return self.prompt_tokens - self.present_tokens

    def onto(self, load: Load) -> Load:
        """``load`` with the call in it: only what must be computed waits; what is present takes
        memory and decode time like the context of a call that runs."""
        return Load(
            waiting=load.waiting + 1,
            waiting_tokens=load.waiting_tokens + self.compute_tokens,
            running=load.running,
            running_context=load.running_context + self.present_tokens,
            remaining_tokens=load.remaining_tokens,
        )


class _Sum:
    """Charges of one model added up."""

    __slots__ = ("calls", "compute", "copies", "host", "present")

    def __init__(self) -> None:
        self.calls = self.compute = self.present = self.copies = self.host = 0

    def count(self, charge: Charge, sign: int) -> None:
        self.calls += sign
        self.compute += sign * charge.compute_tokens
        self.present += sign * charge.present_tokens
        self.copies += sign * (charge.host_tokens > 0)
        self.host += sign * charge.host_tokens


class Overlay:
    """Charges in the order in which the calls were sent.

    An instance takes calls in that order, so a state that shows one shows all before it. A call
    that is gone before it was shown keeps its place in the order, without its charge.
    """

    def __init__(self) -> None:
        self._charges: dict[bytes, Charge | None] = {}
        self._sums: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, call_id: bytes, charge: Charge) -> None:
        self._charges[call_id] = charge
        self._count(charge, 1)

    def release(self, call_id: bytes) -> bool:
        """The call is over; False when a state has shown it already."""
        charge = self._charges.get(call_id)
        if charge is not None:
            self._count(charge, -1)
            self._charges[call_id] = None
        if not self._live:
            self._charges.clear()
        return charge is not None

    def shown(self, call_id: bytes) -> None:
        """A state shows this call; nothing happens when the call is not in the overlay."""
        if call_id not in self._charges:
            return
        for known in list(self._charges):
            charge = self._charges.pop(known)
            if charge is not None:
                self._count(charge, -1)
            if known == call_id:
                return

    def onto(self, loads: Mapping[str, Load]) -> dict[str, Load]:
        """``loads`` with the charges added as waiting calls."""
        merged = dict(loads)
        for model, total in self._sums.items():
            if not total.calls:
                continue
            load = merged.get(model, Load())
            merged[model] = Load(
                waiting=load.waiting + total.calls,
                waiting_tokens=load.waiting_tokens + total.compute,
                running=load.running,
                running_context=load.running_context + total.present,
                remaining_tokens=load.remaining_tokens,
            )
        return merged

    def restores(self) -> dict[str, tuple[int, int]]:
        """Copies from the host that no state shows: calls and tokens, by model."""
        return {m: (total.copies, total.host) for m, total in self._sums.items() if total.host}

    def _count(self, charge: Charge, sign: int) -> None:
        self._live += sign
        self._sums[charge.model].count(charge, sign)


def without(load: Load, calls: int) -> Load:
    """``load`` less ``calls`` that have ended since, each taken as a typical one: of those that
    run as far as there are so many, then of those that wait."""
    running = min(calls, load.running)
    waiting = min(calls - running, load.waiting)
    if running + waiting == load.running + load.waiting:
        return Load()
    kept = 1 - running / load.running if load.running else 1.0
    still = 1 - waiting / load.waiting if load.waiting else 1.0
    return Load(
        waiting=load.waiting - waiting,
        waiting_tokens=round(load.waiting_tokens * still),
        running=load.running - running,
        running_context=round(load.running_context * kept),
        remaining_tokens=round(load.remaining_tokens * kept),
    )
