"""The phases of a slot (Talaria section 3.4) as a transition table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """``P`` queued prefill, ``D1`` decode while the slot is open, ``SP`` the prefill of returning
    sessions and ``D`` decode after it, ``DFIN`` what protected decode is still owed; then a
    switch, or another slot of the same model."""

    IDLE = "idle"
    SWITCH = "switch"
    P = "P"
    D1 = "D1"
    SP = "SP"
    D = "D"
    DFIN = "Dfin"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.IDLE: frozenset({Phase.P, Phase.SWITCH}),
    Phase.SWITCH: frozenset({Phase.IDLE}),
    Phase.P: frozenset({Phase.D1}),
    Phase.D1: frozenset({Phase.SP, Phase.DFIN}),
    Phase.SP: frozenset({Phase.D}),
    Phase.D: frozenset({Phase.SP, Phase.DFIN}),
    Phase.DFIN: frozenset({Phase.IDLE}),
}

DECODE: Final = frozenset({Phase.D1, Phase.D, Phase.DFIN})
OPEN: Final = frozenset({Phase.D1, Phase.D})
"""Decode phases at whose boundaries returning sessions may come in."""


def move(now: Phase, then: Phase) -> Phase:
    if then not in MOVES[now]:
        raise ValueError(f"a slot in phase {now} cannot enter {then}")
    return then
