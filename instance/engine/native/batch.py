"""Rows of a step as the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alipes.instance.engine.native.carry import Carries, plan_carries, recurrences
from alipes.instance.engine.protocol import EngineError, Row
from alipes.kernels.shapes import PageTable, Segment

Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a row of the active model may refer to."""

    block_tokens: int
    blocks: int
    context: int
    vocab: int
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """n tokens of all rows, one after another. ``tokens``, ``positions``, ``slots`` are (n,)
    int64 on the device; ``last`` (draws,) int64 holds the index of each drawing row's last
    token, or is None where every token is one. There is one segment a row, or ``pages`` in place
    of all where every row has one token; ``carries`` is None for a model without recurrent
    state."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    segments: tuple[Segment, ...]
    last: torch.Tensor | None
    draws: int
    carries: Carries | None = None
    pages: PageTable | None = None

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]


def build_batch(rows: Sequence[Row], bounds: Bounds, device: torch.device) -> Batch:
    """Raises ``EngineError`` for a row outside the bounds."""
    size = bounds.block_tokens
    positions, slots, segments, last = [], [], [], []
    first = 0
    for row in rows:
        count, end = len(row.tokens), row.start + len(row.tokens)
        table = _checked_table(row, end, bounds)
        at = np.arange(row.start, end)
        positions.append(at)
        slots.append(table[at // size] * size + at % size)
        segments.append(Segment(first, count, row.start, _runs(table, end, size), size))
        first += count
        if row.draw is not None:
            last.append(first - 1)
    return Batch(
        tokens=_tensor([row.tokens for row in rows], device),
        positions=_tensor(positions, device),
        slots=_tensor(slots, device),
        segments=tuple(segments),
        last=None if len(last) == first else torch.tensor(last, dtype=torch.int64, device=device),
        draws=len(last),
        carries=plan_carries(rows, device) if bounds.slots else None,
    )


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """n rows of one token each, all of which draw, on the host. ``values`` (5, n) int64 has their
    tokens, positions, slots of the pool, and slots that recurrent state is loaded from and saved
    to, zeros in a model without. ``tables`` are their blocks. ``keep`` are (row, slot) pairs: the
    states that are left in another slot too."""

    values: NDArray[np.int64]
    tables: tuple[Table, ...]
    keep: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        return len(self.tables)


def decode_rows(rows: Sequence[Row], bounds: Bounds) -> DecodeRows | None:
    """None for a step of another kind, and where a row begins a call: it has no state to load.
    Raises ``EngineError`` for a row outside the bounds."""
    if any(len(row.tokens) != 1 or row.draw is None or not row.start for row in rows):
        return None
    tables = tuple(_checked_table(row, row.start + 1, bounds) for row in rows)
    size = bounds.block_tokens
    values = np.zeros((5, len(rows)), dtype=np.int64)
    for at, (row, table) in enumerate(zip(rows, tables, strict=True)):
        slot = table[row.start // size] * size + row.start % size
        values[:3, at] = row.tokens[0], row.start, slot
    keep = []
    for at, given in enumerate(recurrences(rows) if bounds.slots else ()):
        values[3:, at] = given.load or 0, given.save
        if given.keep is not None:
            keep.append((at, given.keep))
    return DecodeRows(values, tables, tuple(keep))


def _checked_table(row: Row, end: int, bounds: Bounds) -> Table:
    table = np.asarray(row.blocks, dtype=np.int64)
    problem = _problem(row, end, table, bounds)
    if problem is not None:
        raise EngineError(f"call {row.call_id.hex()}: {problem}", (row.call_id,))
    return table


def _problem(row: Row, end: int, table: Table, bounds: Bounds) -> str | None:
    if not len(row.tokens):
        return "a row needs at least one token"
    if row.tokens.min() < 0 or row.tokens.max() >= bounds.vocab:
        return f"a token id is outside the vocabulary of {bounds.vocab}"
    if end > bounds.context:
        return f"position {end} is beyond the context of {bounds.context}"
    if len(table) * bounds.block_tokens < end:
        return f"{len(table)} blocks do not cover {end} positions"
    if table.min() < 0 or table.max() >= bounds.blocks:
        return f"a block id is outside the pool of {bounds.blocks} blocks"
    return _slot_problem(row, bounds.slots)


def _slot_problem(row: Row, slots: int) -> str | None:
    given = row.recurrence
    if given is None:
        return "the model has recurrent state: the row needs slots" if slots else None
    if not slots:
        return "the model has no recurrent state: the row may not name slots"
    if (given.load is None) != (row.start == 0):
        return f"it begins at {row.start} with slot {given.load}: no state is that of position 0"
    for slot in (given.load, given.save, given.keep):
        if slot is not None and not 0 <= slot < slots:
            return f"slot {slot} is not one of {slots}"
    if given.keep == given.save:
        return f"slot {given.keep} cannot hold two states"
    if given.keep is not None and not 0 < given.kept <= len(row.tokens):
        return f"the state after {given.kept} of {len(row.tokens)} tokens cannot be kept"
    return None


def _runs(table: Table, end: int, block_tokens: int) -> tuple[tuple[int, int], ...]:
    """Contiguous (slot, length) pieces that hold positions 0 .. end - 1."""
    used = table[: -(-end // block_tokens)]
    edges = [0, *(np.flatnonzero(np.diff(used) != 1) + 1).tolist(), len(used)]
    runs = []
    for begin, stop in pairwise(edges):
        length = min(stop * block_tokens, end) - begin * block_tokens
        runs.append((int(used[begin]) * block_tokens, length))
    return tuple(runs)


def _tensor(parts: Sequence[NDArray[Any]], device: torch.device) -> torch.Tensor:
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return torch.from_numpy(whole.astype(np.int64, copy=False)).to(device)
