"""What became known and unknown in a registry, in order and in unbroken rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostStored:
    """Consecutive keys of one chain that can now be matched, the first after ``parent``."""

    revision: str
    parent: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HostRemoved:
    revision: str
    keys: tuple[bytes, ...]


HostChange = HostStored | HostRemoved


@dataclass(slots=True)
class _Row:
    """``parent`` is None where the keys were removed."""

    revision: str
    parent: bytes | None
    keys: list[bytes] = field(default_factory=list)


class ChangeLog:
    """Grows until it is taken."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def stored(self, revision: str, parent: bytes, keys: Sequence[bytes]) -> None:
        """Consecutive keys, the first after ``parent``."""
        row = self._last(revision)
        if row is None or row.parent is None or row.keys[-1] != parent:
            row = self._begin(revision, parent)
        row.keys.extend(keys)

    def removed(self, revision: str, key: bytes) -> None:
        row = self._last(revision)
        if row is None or row.parent is not None:
            row = self._begin(revision, None)
        row.keys.append(key)

    def take(self) -> tuple[HostChange, ...]:
        """Everything since this was last asked."""
        rows, self._rows = self._rows, []
        return tuple(
            HostRemoved(row.revision, tuple(row.keys))
            if row.parent is None
            else HostStored(row.revision, row.parent, tuple(row.keys))
            for row in rows
        )

    def _last(self, revision: str) -> _Row | None:
        return self._rows[-1] if self._rows and self._rows[-1].revision == revision else None

    def _begin(self, revision: str, parent: bytes | None) -> _Row:
        self._rows.append(_Row(revision, parent))
        return self._rows[-1]
