"""What the first rank tells the others, and what they tell it.

All ranks do the same in the same order, so most of it needs no answer: a rank that cannot follow
says ``Broken`` and ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from alipes.instance.contract import InstanceSettings, ModelReport, Sampling
from alipes.instance.engine.protocol import (
    BlockCopy,
    Draw,
    HostSlabs,
    Recurrence,
    Row,
    SwitchReport,
)


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Start(Message, frozen=True):
    """``settings`` are those of one rank; ``meeting`` is the file over which ranks find each
    other, who then wait ``seconds`` for one another at most."""

    settings: InstanceSettings
    rank: int
    ranks: int
    meeting: str
    seconds: float


class Activate(Message, frozen=True):
    model: str


class Stage(Message, frozen=True):
    following: str | None
    rows: int


class WireRow(msgspec.Struct, frozen=True, array_like=True):
    """As ``Row``; ``tokens`` are int32. What is drawn is the first rank's affair alone."""

    call_id: bytes
    tokens: bytes
    start: int
    blocks: tuple[int, ...]
    draws: bool
    recurrence: Recurrence | None


class Step(Message, frozen=True):
    rows: tuple[WireRow, ...]


class Undo(Message, frozen=True):
    """The step was refused: it leaves no state."""


class CopyOut(Message, frozen=True):
    ticket: int
    copies: tuple[BlockCopy, ...]


class CopyIn(Message, frozen=True):
    copies: tuple[BlockCopy, ...]


class Close(Message, frozen=True):
    pass


ToRank = Start | Activate | Stage | Step | Undo | CopyOut | CopyIn | Close


class Here(Message, frozen=True):
    """The rank is about to meet the others."""


class Ready(Message, frozen=True):
    reports: tuple[ModelReport, ...]
    host: HostSlabs


class Switched(Message, frozen=True):
    report: SwitchReport


class Restored(Message, frozen=True):
    """The rank has read all slabs of a ``CopyIn``, its own and others'."""


class Held(Message, frozen=True):
    """More of a copy is on the host, see ``Agreement.report``."""

    ticket: int
    marks: tuple[int, ...]
    ended: bool


class Broken(Message, frozen=True):
    """The rank ends; ``refused`` where starting again would not help."""

    reason: str
    refused: bool


FromRank = Here | Ready | Switched | Restored | Held | Broken


def to_wire(rows: Sequence[Row]) -> Step:
    return Step(
        tuple(
            WireRow(
                row.call_id,
                np.ascontiguousarray(row.tokens, dtype="<i4").tobytes(),
                row.start,
                tuple(row.blocks),
                row.draw is not None,
                row.recurrence,
            )
            for row in rows
        )
    )


def from_wire(step: Step) -> tuple[Row, ...]:
    return tuple(map(_row, step.rows))


def _row(row: WireRow) -> Row:
    tokens = np.frombuffer(row.tokens, dtype="<i4")
    draw = Draw(Sampling(temperature=0), tokens, len(tokens)) if row.draws else None
    return Row(row.call_id, tokens, row.start, row.blocks, draw, row.recurrence)
