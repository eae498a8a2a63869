"""Numbers that a synthesis rests on: what was published, and what had to be assumed."""

from __future__ import annotations

import msgspec


class Published(msgspec.Struct, frozen=True):
    """A number that a paper states, or that follows from those it states."""

    value: float
    source: str


class Assumed(msgspec.Struct, frozen=True):
    """A number that no paper gives, with why it is what it is. None was chosen after looking at
    what a replay of the workload showed."""

    value: float
    reason: str


Number = Published | Assumed
