"""Label values of metrics come from a bounded set, whatever clients and instances say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OTHER: Final = "other"


class BoundedLabel:
    """Maps values to label values: those known, or the first few seen; ``other`` for the rest."""

    def __init__(self, known: Iterable[str] = (), learn: int = 0) -> None:
        self._known = set(known)
        self._learn = learn

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if self._learn > 0:
            self._learn -= 1
            self._known.add(value)
            return value
        return OTHER
