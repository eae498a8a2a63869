"""What changed since it was last taken."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Changes(Generic[K, V]):
    """The latest state of what changed, by key; None for what is gone. Nothing is noted, and
    nothing held, before ``begin`` and after ``end``."""

    def __init__(self) -> None:
        self._latest: dict[K, V | None] | None = None

    def __len__(self) -> int:
        return len(self._latest or ())

    def begin(self) -> None:
        self._latest = {}

    def end(self) -> None:
        self._latest = None

    def note(self, key: K, value: V | None) -> None:
        if self._latest is not None:
            self._latest[key] = value

    def take(self) -> dict[K, V | None]:
        """What changed since the last time."""
        if not self._latest:
            return {}
        taken, self._latest = self._latest, {}
        return taken
