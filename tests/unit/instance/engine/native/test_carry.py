"""States carried through rows of a batch, against each row's tokens one after another."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.engine.native.carry import carry, plan_carries
from alipes.instance.engine.protocol import EngineError, Recurrence, Row

CPU = torch.device("cpu")
SLOTS = 12
Tensor = torch.Tensor


@dataclass
class Saved:
    writes: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def save(self, state: Tensor, slots: Tensor, values: Tensor) -> None:
        assert values.shape == (len(slots), *state.shape[1:])
        self.writes.append((slots, values))

    def commit(self, pool: Tensor) -> None:
        for slots, values in self.writes:
            pool[slots] = values


def step(x: Tensor, states: Tensor) -> Tensor:
    """Order matters: (state, x) becomes 3 state + x, and that is the output."""
    states.mul_(3).add_(x.unsqueeze(1))
    return states[:, 0].clone()


def chunk(x: Tensor, state: Tensor) -> Tensor:
    return torch.stack([step(one.unsqueeze(0), state.unsqueeze(0))[0] for one in x])


def row(name: bytes, count: int, recurrence: Recurrence) -> Row:
    start = 0 if recurrence.load is None else 8
    return Row(name, np.zeros(count, dtype=np.int32), start, range(9), None, recurrence)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Rows of any length whose slots to write are all different; loads are any."""
    rows = []
    free = draw(st.permutations(range(SLOTS)))
    for number in range(draw(st.integers(1, 5))):
        count = draw(st.sampled_from([1, 1, 2, 5]))
        load = draw(st.one_of(st.none(), st.integers(0, SLOTS - 1)))
        kept = draw(st.integers(0, count))
        keep = free[2 * number + 1] if kept else None
        rows.append(row(b"%d" % number, count, Recurrence(load, free[2 * number], keep, kept)))
    return rows


@settings(deadline=None)
@given(batches())
def test_every_row_alone_and_its_slots_after_it(rows: list[Row]) -> None:
    inputs = torch.arange(1.0, 1 + sum(len(row.tokens) for row in rows)).double()
    pool = torch.randn(SLOTS, 1, generator=torch.Generator().manual_seed(1)).double()
    before, want_pool, want = pool.clone(), pool.clone(), []
    first = 0
    for each in rows:
        given = each.recurrence
        assert given is not None
        state = torch.zeros(1, 1).double() if given.load is None else before[given.load][None]
        state = state.clone()
        for at in range(len(each.tokens)):
            want.append(step(inputs[first + at][None], state))
            if given.keep is not None and at + 1 == given.kept:
                want_pool[given.keep] = state[0]
        want_pool[given.save] = state[0]
        first += len(each.tokens)

    saved = Saved()
    out = carry(plan_carries(rows, CPU), saved, pool, (inputs,), step, chunk)
    assert torch.equal(out, torch.cat(want))
    assert torch.equal(pool, before)
    saved.commit(pool)
    assert torch.equal(pool, want_pool)


def test_rows_that_begin_anew_do_not_see_what_their_slot_held() -> None:
    pool = torch.full((2, 1), float("nan"))
    rows = [row(b"one", 1, Recurrence(None, 0)), row(b"two", 2, Recurrence(None, 1))]
    out = carry(plan_carries(rows, CPU), Saved(), pool, (torch.ones(3),), step, chunk)
    assert out.tolist() == [1.0, 1.0, 4.0]


@pytest.mark.parametrize("second", [Recurrence(1, 3), Recurrence(1, 4), Recurrence(1, 5, 3, 1)])
def test_two_rows_cannot_write_one_slot(second: Recurrence) -> None:
    rows = [row(b"one", 2, Recurrence(None, 3, 4, 1)), row(b"two", 2, second)]
    with pytest.raises(EngineError, match="gets another row's state too") as raised:
        plan_carries(rows, CPU)
    assert raised.value.call_ids == (b"two",)
