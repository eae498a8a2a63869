"""How models come onto a simulated device: staged while another serves, or from the host.

The bookkeeping is the live engine's (``instance/memory/staging.py``); only the copies are replaced
by what they take. A writer has its part of the host-to-device rate whenever a model serves: that
restores use the same link is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping

from alipes.instance.engine.protocol import Staged
from alipes.instance.memory.staging import StagedSwitch, StagingLedger, retained
from alipes.instance.memory.staging_plan import StagingArea
from alipes.replay.runs import SwitchRecord
from alipes.replay.sim.costs import EngineCosts
from alipes.replay.sim.hardware import Hardware


class StagingModel:
    """The weights on one instance's devices; all but ``hardware`` of those models it serves.
    Times in ns. With ``enabled`` false every switch loads from the host."""

    def __init__(
        self,
        name: str,
        hardware: Hardware,
        costs: Mapping[str, EngineCosts],
        enabled: bool = True,
    ) -> None:
        self._name = name
        self._hardware = hardware
        self._costs = costs
        self._enabled = enabled
        self._rate = hardware.staging_share.value * hardware.rates.h2d.value / 1e9
        self._areas = {name: self._area(own) for name, own in costs.items()}
        self._ledger: StagingLedger | None = None
        # How many rows each had in use when it left.
        self._rows: dict[str, int] = {}
        # Models by when they were active, the last one last.
        self._order: list[str] = []
        # Bytes of the chunk under way that have been written.
        self._begun = 0.0

    @property
    def staged(self) -> Staged:
        """What switches would find on the device."""
        ledger = self._ledger
        return Staged(ledger.target, ledger.covered, ledger.slack) if ledger else Staged()

    def serving(self, following: str | None, begin: int, end: int, rows: int) -> None:
        """From ``begin`` to ``end`` the active model served, its blocks in the lowest ``rows``
        rows of each layer, and ``following`` is to be active next, as far as anybody knows."""
        ledger = self._ledger
        if ledger is None:
            return
        ledger.occupied(rows)
        if following is None:
            return
        if ledger.target != following:
            ledger.begin(following, self._costs[following].weight_bytes)
            self._begun = 0.0
        self._begun += self._rate * (end - begin)
        self._write(ledger)

    def switch(self, model: str, now: int) -> tuple[int, SwitchRecord]:
        """Make ``model`` active, beginning ``now``: how long it takes, and what it was."""
        costs, before, after = self._costs[model], self._ledger, StagingLedger(self._areas[model])
        staged = (before or after).switch(model, costs.weight_bytes)
        duration = costs.switch(staged.h2d_bytes, staged.d2d_bytes)
        if before is not None and self._hardware.exchange:
            weights = {name: own.weight_bytes for name, own in self._costs.items()}
            self._rows[self._order[-1]] = before.rows
            after.keep(retained(before, self._order, weights, model), self._rows.get(model, 0))
        self._order = [name for name in self._order if name != model] + [model]
        self._ledger = after if self._enabled else None
        self._begun = 0.0
        return duration, self._record(staged, now, duration)

    def _write(self, ledger: StagingLedger) -> None:
        size = ledger.area.chunk_bytes
        while self._begun >= size:
            chunks = ledger.next(int(self._begun // size))
            if not chunks:
                # A writer with nothing to do does not save up for later.
                self._begun = 0.0
                return
            ledger.written(chunks)
            self._begun -= size * len(chunks)

    def _area(self, costs: EngineCosts) -> StagingArea:
        layers = self._hardware.models[costs.model].layers
        row = -(-costs.block_bytes // layers)
        chunk = max(row, self._hardware.staging_chunk)
        return StagingArea(costs.kv_blocks, (row,) * layers, chunk, costs.weight_bytes)

    def _record(self, staged: StagedSwitch, now: int, duration: int) -> SwitchRecord:
        return SwitchRecord(
            instance=self._name,
            at=now / 1e9,
            model=staged.target,
            path=str(staged.path),
            seconds=duration / 1e9,
            h2d_bytes=staged.h2d_bytes,
            d2d_bytes=staged.d2d_bytes,
        )
