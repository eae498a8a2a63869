"""Per-model cost profiles over all instances (Talaria 3.3).

What instances of one kind (engine and device) measured of a model is one profile, weighted by
the measurements behind it: an instance that never ran the model is charged what the others
measured, not its own prior, and chance differences between measurements decide nothing. The
switch time stays the instance's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec.structs import astuple, replace

from alipes.instance.contract import Estimate, Hello

Kind = tuple[str, str]


class CostProfiles:
    """The latest estimates of every connected instance, and what follows for each of them."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._reported: dict[str, Mapping[str, Estimate]] = {}
        self._merged: dict[Kind, dict[str, Estimate]] = {}

    def connected(self, hello: Hello) -> None:
        self.forget(hello.name)
        self._kinds[hello.name] = (hello.engine, hello.device)

    def observe(self, name: str, estimates: Mapping[str, Estimate]) -> None:
        if self._reported.get(name) != estimates:
            self._reported[name] = estimates
            self._merged.pop(self._kinds[name], None)

    def forget(self, name: str) -> None:
        self._reported.pop(name, None)
        kind = self._kinds.pop(name, None)
        if kind is not None:
            self._merged.pop(kind, None)

    def of(self, name: str) -> dict[str, Estimate]:
        """The costs to charge on an instance, by model: those it has reported on."""
        kind = self._kinds.get(name)
        if kind is None:
            return {}
        if kind not in self._merged:
            self._merged[kind] = self._merge(kind)
        merged = self._merged[kind]
        own = self._reported.get(name, {})
        return {
            model: replace(merged[model], switch=estimate.switch) if model in merged else estimate
            for model, estimate in own.items()
        }

    def _merge(self, kind: Kind) -> dict[str, Estimate]:
        measured: dict[str, list[Estimate]] = defaultdict(list)
        for name, estimates in self._reported.items():
            if self._kinds[name] == kind:
                for model, estimate in estimates.items():
                    if estimate.samples:
                        measured[model].append(estimate)
        return {model: _mean(estimates) for model, estimates in measured.items()}


def _mean(estimates: list[Estimate]) -> Estimate:
    """Coefficients weighted by samples; ``samples`` is their sum."""
    total = sum(estimate.samples for estimate in estimates)
    weights = [estimate.samples / total for estimate in estimates]
    columns = zip(*map(astuple, estimates), strict=True)
    means = [sum(w * v for w, v in zip(weights, column, strict=True)) for column in columns]
    return replace(Estimate(*means), samples=total)
