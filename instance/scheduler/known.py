"""What need not be computed of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from alipes.instance.memory.rows import HostBlock


@dataclass(frozen=True, slots=True)
class Known:
    """A beginning of a prompt that need not be computed: device blocks ``found``, of which the
    first are ``published``, then host blocks. ``declined`` more lack the state after them."""

    found: list[int]
    published: int
    sources: list[HostBlock]
    declined: int = 0

    @property
    def blocks(self) -> int:
        return len(self.found) + len(self.sources)

    @property
    def parting(self) -> int:
        """After how many blocks a state was lacking: there the prompt parts from those that its
        beginning was computed for. 0 where none was lacking."""
        return self.blocks + self.declined if self.declined else 0

    def first(self, blocks: int) -> Known:
        found, rest = self.found[:blocks], max(0, blocks - len(self.found))
        declined = self.blocks - blocks
        return Known(found, min(self.published, blocks), self.sources[:rest], declined)
