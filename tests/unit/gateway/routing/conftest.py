"""A router with instances that the test moves: states, blocks, calls, time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from alipes.gateway.routing.decision import (
    CallShape,
    Candidate,
    Completion,
    Placement,
    RouterSettings,
)
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
    Tier,
)

SECOND = 1_000_000_000
BLOCK = 64
COST = Estimate(0.01, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.001, 0.0001, 9)


@dataclass(frozen=True)
class Keys:
    """A path of given keys."""

    listed: tuple[bytes, ...]

    def keys(self, kv_format: str) -> Sequence[bytes]:
        assert kv_format == "kv"
        return self.listed


class Stage:
    """Instances ``x`` and ``y`` that serve models ``a`` and ``b``, unless told otherwise."""

    def __init__(
        self,
        settings: RouterSettings | None = None,
        serves: Mapping[str, str] | None = None,
        cost: Estimate = COST,
        pool: Pool = Pool.COLD,
    ) -> None:
        self.now = 0
        self.serves = serves or {"x": "ab", "y": "ab"}
        self.cost = cost
        self.pool = pool
        known = {
            model: frozenset(name for name, models in self.serves.items() if model in models)
            for model in "".join(self.serves.values())
        }
        self.router = Router(known, settings)
        self._versions = self._calls = 0
        for name in self.serves:
            self.connect(name)
            self.show(name)

    def connect(self, name: str, incarnation: str = "first") -> tuple[bytes, ...]:
        reports = tuple(
            ModelReport(model, "kv", 200_000, 100, 1 << 28, 1 << 16, 3000)
            for model in self.serves[name]
        )
        hello = Hello(
            1, name, incarnation, self.pool, "fake", "cpu", BLOCK, 4, 64, 512, Targets(), reports, 1
        )
        return self.router.connected(hello, self.now)

    def show(
        self,
        name: str,
        active: str = "",
        loads: Mapping[str, Load] | None = None,
        *,
        draining: bool = False,
        counters: Counters | None = None,
        round_length: float = 0.0,
        free: int = 100,
        cached: int = 0,
        last_call: bytes = b"",
    ) -> None:
        self._versions += 1
        state = Snapshot(
            self._versions,
            active,
            "P",
            0.0,
            round_length,
            draining,
            dict(loads or {}),
            dict.fromkeys(self.serves[name], self.cost),
            Occupancy(100, free, cached, 100 - free - cached, 0, 0),
            counters or Counters(),
            last_call,
        )
        self.router.updated(name, state, self.now)

    def stored(self, name: str, keys: Sequence[bytes], tier: Tier = Tier.DEVICE) -> None:
        self.router.stored(name, BlocksStored("a", tier, b"", tuple(keys)))

    def removed(self, name: str, keys: Sequence[bytes], tier: Tier = Tier.DEVICE) -> None:
        self.router.removed(name, BlocksRemoved("a", tier, tuple(keys)))

    def call(
        self,
        model: str = "a",
        branch: bytes = b"",
        prompt: int = 100,
        output: int = 50,
        known: int = 0,
        keys: Sequence[bytes] | None = None,
        final: bool = False,
    ) -> CallShape:
        self._calls += 1
        path = None if keys is None else Keys(tuple(keys))
        return CallShape(
            self._calls.to_bytes(16, "big"),
            model,
            "tenant",
            prompt,
            output,
            branch,
            known,
            final,
            path,
        )

    def place(self, call: CallShape) -> Placement:
        answer = self.router.place(call, self.now)
        assert isinstance(answer, Placement), answer
        return answer

    def finish(self, call: CallShape, prefix: bytes = b"", blocks: int = 0) -> None:
        completion = Completion(call.max_tokens, prefix, blocks * BLOCK)
        self.router.complete(call.call_id, self.now, completion)

    def candidates(self, call: CallShape) -> dict[str, Candidate]:
        """What the router thinks of a call, which is then given up."""
        answer = self.router.place(call, self.now)
        assert not isinstance(answer, type(None))
        self.router.released(call.call_id, self.now)
        return {candidate.instance: candidate for candidate in answer.candidates}


def keys_of(chain: int, blocks: int) -> tuple[bytes, ...]:
    """Distinct keys of one chain."""
    return tuple(bytes([chain]) + number.to_bytes(15, "big") for number in range(blocks))


@pytest.fixture
def stage() -> Callable[..., Stage]:
    return Stage


@pytest.fixture
def keys() -> Callable[[int, int], tuple[bytes, ...]]:
    return keys_of
