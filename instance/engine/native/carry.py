"""How the rows of a step carry recurrent state on: from slots, through their tokens, to slots.

Rows of one token move on together, as one tensor of states. Longer rows move on one after
another, in stretches that end where their state is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from alipes.instance.engine.protocol import EngineError, Recurrence, Row

Tensor = torch.Tensor
Move = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Together:
    """m rows of one token. ``tokens`` (m,) of the batch, None where they are all of it; their
    ``load`` (m,) slots, of which those at ``fresh`` are none. ``save`` (m,) are slots, and so are
    ``keep`` (k,), for the rows ``keeping`` (k,) of them, or None. All int64."""

    tokens: Tensor | None
    load: Tensor
    fresh: Tensor | None
    save: Tensor
    keeping: Tensor | None
    keep: Tensor


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens first .. end - 1 of the batch, after which ``slots`` (k,) int64 get the state."""

    first: int
    end: int
    slots: Tensor


@dataclass(frozen=True, slots=True)
class Alone:
    load: int | None
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Carries:
    together: Together | None
    alone: tuple[Alone, ...]


class Saver(Protocol):
    def save(self, state: Tensor, slots: Tensor, values: Tensor) -> None: ...


def plan_carries(rows: Sequence[Row], device: torch.device) -> Carries:
    """For rows that all name slots. Raises ``EngineError`` where two would write the same."""
    together: list[tuple[int, Recurrence]] = []
    alone, first = [], 0
    for row, given in zip(rows, recurrences(rows), strict=True):
        end = first + len(row.tokens)
        if len(row.tokens) == 1:
            together.append((first, given))
        else:
            alone.append(_alone(given, first, end, device))
        first = end
    return Carries(_together(together, first, device) if together else None, tuple(alone))


def recurrences(rows: Sequence[Row]) -> list[Recurrence]:
    """Those of rows that all name slots. Raises ``EngineError`` where two would write the same."""
    found, written = [], set[int]()
    for row in rows:
        given = row.recurrence
        assert given is not None
        for slot in (given.save, given.keep):
            if slot in written:
                reason = f"call {row.call_id.hex()}: slot {slot} gets another row's state too"
                raise EngineError(reason, (row.call_id,))
            if slot is not None:
                written.add(slot)
        found.append(given)
    return found


def _together(rows: Sequence[tuple[int, Recurrence]], count: int, device: torch.device) -> Together:
    def indices(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    given = [one for _, one in rows]
    fresh = [at for at, one in enumerate(given) if one.load is None]
    keep = [(at, one.keep) for at, one in enumerate(given) if one.keep is not None]
    return Together(
        tokens=None if len(rows) == count else indices([first for first, _ in rows]),
        load=indices([one.load or 0 for one in given]),
        fresh=indices(fresh) if fresh else None,
        save=indices([one.save for one in given]),
        keeping=indices([at for at, _ in keep]) if keep else None,
        keep=indices([slot for _, slot in keep]),
    )


def _alone(given: Recurrence, first: int, end: int, device: torch.device) -> Alone:
    wanted = {end: [given.save]}
    if given.keep is not None:
        wanted.setdefault(first + given.kept, []).append(given.keep)
    stretches = []
    for stop in sorted(wanted):
        slots = torch.tensor(wanted[stop], dtype=torch.int64, device=device)
        stretches.append(Stretch(first, stop, slots))
        first = stop
    return Alone(given.load, tuple(stretches))


def carry(
    carries: Carries,
    saver: Saver,
    pool: Tensor,
    inputs: Sequence[Tensor],
    step: Move,
    chunk: Move,
) -> Tensor:
    """Move the states of ``pool`` (slots, *shape) on by all tokens of ``inputs`` (n, ...) each:
    ``step(*inputs, states)`` one token of each of many rows, ``chunk(*inputs, state)`` many of
    one, both changing the states that they get in place. Returns what they do, (n, ...); the
    pool stays as it is until the saver commits."""
    together, out = carries.together, None
    if together is not None:
        states = pool.index_select(0, together.load)
        if together.fresh is not None:
            states.index_fill_(0, together.fresh, 0.0)
        if together.tokens is None:
            out = step(*inputs, states)
        else:
            taken = step(*(x.index_select(0, together.tokens) for x in inputs), states)
            out = taken.new_empty(len(inputs[0]), *taken.shape[1:])
            out.index_copy_(0, together.tokens, taken)
        saver.save(pool, together.save, states)
        if together.keeping is not None:
            saver.save(pool, together.keep, states.index_select(0, together.keeping))
    for row in carries.alone:
        for stretch, done in _chunks(row, saver, pool, inputs, chunk):
            if out is None:
                out = done.new_empty(len(inputs[0]), *done.shape[1:])
            out[stretch.first : stretch.end] = done
    assert out is not None
    return out


def _chunks(
    row: Alone, saver: Saver, pool: Tensor, inputs: Sequence[Tensor], chunk: Move
) -> list[tuple[Stretch, Tensor]]:
    state = pool.new_zeros(pool.shape[1:]) if row.load is None else pool[row.load].clone()
    done = []
    for stretch in row.stretches:
        done.append((stretch, chunk(*(x[stretch.first : stretch.end] for x in inputs), state)))
        values = state if stretch is row.stretches[-1] else state.clone()
        saver.save(pool, stretch.slots, values.expand(len(stretch.slots), *values.shape))
    return done
