"""Whether the lengths of a session's rows are those of whole prompts, or of what each adds.

Rows tell it by their hash ids: whole prompts of a conversation begin alike, what is added to it
does not. Without ids for that, lengths that fall are of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

Sized = tuple[int, Sequence[int]]
"""Tokens and hash ids of a row."""


class Prompts(StrEnum):
    """What the lengths of a session's rows count: whole prompts, what is added to all that was
    said before, or whatever the rows tell."""

    WHOLE = "whole"
    ADDED = "added"
    UNKNOWN = "as-told"


ENOUGH: Final = 10
"""A file whose rows agree in one of so many sessions tells it for the others too."""


def told_by(rows: Sequence[Sized], size: int) -> Prompts:
    """What the rows of one session tell; ``size`` tokens a block."""
    differ = falls = False
    for (before, known), (length, ids) in pairwise(rows):
        if known and ids and known[0] == ids[0]:
            return Prompts.WHOLE
        # The id of a part of a block says nothing of what the block begins with.
        differ |= bool(known and ids) and min(before, length) >= size
        falls |= length < before
    return Prompts.ADDED if differ or falls else Prompts.UNKNOWN


def told_by_file(sessions: Sequence[Sequence[Sized]], size: int) -> tuple[list[Prompts], list[int]]:
    """(what each session's lengths count, the sessions of which that is a guess)"""
    told = [told_by(rows, size) for rows in sessions]
    several = [number for number, rows in enumerate(sessions) if len(rows) > 1]
    untold = [number for number in several if told[number] is Prompts.UNKNOWN]
    known = {told[number] for number in several} - {Prompts.UNKNOWN}
    sure = len(known) == 1 and ENOUGH * (len(several) - len(untold)) >= len(several)
    usual = next(iter(known)) if sure else Prompts.ADDED
    filled = [usual if one is Prompts.UNKNOWN else one for one in told]
    return filled, [] if sure else untold
