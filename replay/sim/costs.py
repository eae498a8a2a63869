"""What an engine's work takes by a profile, as pure functions in integer nanoseconds.

The forms are those of ``contract.Estimate`` (Evolving Infra Eq. 1-2, with a term for the context
in Eq. 2), so that what a scheduler fits to simulated work comes out as the profile's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from alipes.instance.contract import Estimate
from alipes.replay.sim.hardware import Hardware, HardwareError, Quantity, Rates

ATTO: Final = 10**18
_PER_NS: Final = ATTO // 10**9


def _atto(quantity: Quantity) -> int:
    return round(quantity.value * ATTO)


def _ns(atto: int) -> int:
    """Nanoseconds, rounded half up."""
    return (atto + _PER_NS // 2) // _PER_NS


def _copying(nbytes: float, rate: Quantity) -> int:
    """Attoseconds of copying ``nbytes``."""
    return round(nbytes / rate.value * ATTO)


def _kv_rate(rates: Rates) -> Quantity:
    return rates.kv_h2d if rates.kv_h2d.value else rates.h2d


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """One model on one instance. Coefficients are integer attoseconds, so that sums are exact and
    a run of iterations takes as long as its parts, to the nanosecond. ``cold`` (ns) comes once on
    top of the first prefill of a call that finds nothing cached."""

    model: str
    weight_bytes: int
    block_bytes: int
    host_block_bytes: int
    kv_blocks: int
    cold: int
    _prefill: tuple[int, int, int]
    _decode: tuple[int, int, int]
    _restore: tuple[int, int]
    _checkpoint: tuple[int, int]
    _fetch: tuple[int, int]
    _switch: int
    _h2d: float
    _d2d: float

    def prefill(self, rows: Sequence[tuple[int, int]]) -> int:
        """One iteration over rows of (new tokens, start position)."""
        base, token, context = self._prefill
        tokens = sum(new for new, _ in rows)
        positions = sum(new * (start + new) for new, start in rows)
        return _ns(base + tokens * token + positions * context)

    def decode(self, calls: int, context: int, steps: int = 1) -> int:
        """``steps`` iterations of ``calls`` calls with ``context`` tokens in all before the first;
        each iteration adds a token to every call."""
        base, call, position = self._decode
        positions = steps * context + calls * (steps * (steps - 1) // 2)
        return _ns(steps * (base + calls * call) + positions * position)

    def restore(self, tokens: int) -> int:
        """Copying the KV of so many tokens from the host."""
        base, token = self._restore
        return _ns(base + tokens * token)

    def checkpoint(self, tokens: int) -> int:
        """Copying the KV of so many tokens to the host."""
        base, token = self._checkpoint
        return _ns(base + tokens * token)

    def fetch(self, tokens: int) -> int:
        """Copying the KV of so many tokens from another instance's host memory to this one's."""
        base, token = self._fetch
        return _ns(base + tokens * token)

    def switch(self, h2d_bytes: int, d2d_bytes: int) -> int:
        """Making the model active with so many bytes of its weights from the host and from where
        they were staged."""
        copying = h2d_bytes / self._h2d + d2d_bytes / self._d2d
        return _ns(self._switch + round(copying * ATTO))

    def estimate(self) -> Estimate:
        """The coefficients in seconds, as a scheduler that has measured enough reports them; the
        switch is one from the host."""
        return Estimate(
            prefill_base=self._prefill[0] / ATTO,
            prefill_token=self._prefill[1] / ATTO,
            prefill_context=self._prefill[2] / ATTO,
            decode_base=self._decode[0] / ATTO,
            decode_call=self._decode[1] / ATTO,
            decode_context=self._decode[2] / ATTO,
            switch=self.switch(self.weight_bytes, 0) / 1e9,
            restore_base=self._restore[0] / ATTO,
            restore_token=self._restore[1] / ATTO,
            samples=0,
        )


def engine_costs(hardware: Hardware, model: str) -> EngineCosts:
    """Raises ``HardwareError`` for a model that the profile does not have."""
    costs = hardware.models.get(model)
    if costs is None:
        known = ", ".join(sorted(hardware.models))
        raise HardwareError(f"{hardware.name} has no model {model}; known: {known}")
    rates, fixed = hardware.rates, hardware.fixed
    weights = round(costs.weight_bytes.value)
    room = int(hardware.device_bytes.value - hardware.runtime_bytes.value) - weights
    block = round(costs.kv_token_bytes.value * hardware.block_tokens)
    host_token = costs.kv_host_token_bytes.value or costs.kv_token_bytes.value
    return EngineCosts(
        model=model,
        weight_bytes=weights,
        block_bytes=block,
        host_block_bytes=round(host_token * hardware.block_tokens),
        kv_blocks=room // block,
        cold=_ns(_atto(costs.prefill_cold)),
        _prefill=(
            _atto(costs.prefill_base),
            _atto(costs.prefill_token),
            _atto(costs.prefill_context),
        ),
        _decode=(_atto(costs.decode_base), _atto(costs.decode_call), _atto(costs.decode_context)),
        _restore=(_atto(fixed.restore), _copying(host_token, _kv_rate(rates))),
        _checkpoint=(_atto(fixed.checkpoint), _copying(host_token, rates.d2h)),
        _fetch=(_atto(fixed.fetch), _copying(host_token, rates.rdma)),
        _switch=_atto(fixed.switch),
        _h2d=rates.h2d.value,
        _d2d=rates.d2d.value,
    )
