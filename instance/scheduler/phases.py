"""The phases of a slot (Talaria section 3.4) as a transition table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """``P`` queued prefill, ``D1`` decode while the slot is open, ``DFIN`` what protected decode
    is still owed; then a switch, or another slot of the same model."""

    IDLE = "idle"
    SWITCH = "switch"
    P = "P"
    D1 = "D1"
    DFIN = "Dfin"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.IDLE: frozenset({Phase.P, Phase.SWITCH}),
    Phase.SWITCH: frozenset({Phase.P, Phase.IDLE}),
    Phase.P: frozenset({Phase.D1}),
    Phase.D1: frozenset({Phase.DFIN}),
    Phase.DFIN: frozenset({Phase.IDLE}),
}

DECODE: Final = frozenset({Phase.D1, Phase.DFIN})


def move(now: Phase, then: Phase) -> Phase:
    if then not in MOVES[now]:
        raise ValueError(f"a slot in phase {now} cannot enter {then}")
    return then
