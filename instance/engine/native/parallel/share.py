"""Which part of a divided model one rank holds; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.instance.contract import InstanceSettings
from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.layout import Cut


@dataclass(frozen=True, slots=True)
class Share:
    """Of ``ranks`` equal parts, that of ``rank``."""

    rank: int
    ranks: int

    @property
    def rows(self) -> Cut:
        return Cut(0, self.rank, self.ranks)

    @property
    def columns(self) -> Cut:
        return Cut(1, self.rank, self.ranks)

    def of(self, count: int, what: str) -> int:
        """How many of ``count`` a rank has; raises ``ModelError`` naming ``what``."""
        if count % self.ranks:
            raise ModelError(f"{what}: {count} do not divide among {self.ranks} ranks: lower ranks")
        return count // self.ranks


WHOLE: Final = Share(0, 1)


def settings_of_rank(settings: InstanceSettings) -> InstanceSettings:
    """What an instance is told, as one of its ranks is: the host's memory and the threads are
    divided, ``device_bytes`` are each rank's own."""
    return msgspec.structs.replace(
        settings,
        host_bytes=settings.host_bytes // settings.ranks,
        threads=max(1, settings.threads // settings.ranks),
    )
