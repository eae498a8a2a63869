"""Where a batch's attention reads, as tensors on its device, made once for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from alipes.kernels.portable import beside
from alipes.kernels.shapes import Segment


@dataclass(frozen=True, slots=True)
class Tiles:
    """Pieces of work: up to ``rows`` rows of one segment each. ``table`` (tiles, 4) int64 has the
    first row, how many, the first one's position, and where ``Pages.slots`` holds position 0 of
    the segment. No row sees more than ``longest`` positions. Tiles of a ``PageTable``, whose blocks
    have ``block`` tokens, are its rows, and ``table`` (tiles,) their positions."""

    table: torch.Tensor
    rows: int
    longest: int
    block: int = 0


@dataclass(frozen=True, slots=True)
class Pages:
    """``slots`` (positions of all segments,) int64; ``single`` are the segments of one row, which
    need many programs for one tile, and ``several`` all others."""

    slots: torch.Tensor
    single: Tiles
    several: Tiles


class Pager:
    """Remembers the batch that it saw last: every layer asks for the same. Batches in a list,
    which may change, are looked at anew."""

    def __init__(self) -> None:
        self._last: tuple[object, tuple[int, torch.device], Pages] | None = None

    def pages(self, segments: Sequence[Segment], rows: int, device: torch.device) -> Pages:
        """Tiles of ``rows`` rows on ``device``."""
        last, key = self._last, (rows, device)
        if last is not None and last[0] is segments and last[1] == key:
            return last[2]
        pages = lay_out(segments, rows, device)
        self._last = (segments, key, pages) if isinstance(segments, tuple) else None
        return pages


def lay_out(segments: Sequence[Segment], rows: int, device: torch.device) -> Pages:
    """One small copy to the device: runs are spread out to slots there."""
    firsts: list[int] = []
    lengths: list[int] = []
    tables: tuple[list[int], list[int]] = ([], [])
    longest, base = [0, 0], 0
    for segment in segments:
        kind = segment.count > 1
        longest[kind] = max(longest[kind], segment.start + segment.count)
        for row in range(0, segment.count, rows):
            count = min(rows, segment.count - row)
            tables[kind].extend((segment.first + row, count, segment.start + row, base))
        for slot, length in segment.runs:
            firsts.append(slot - base)
            lengths.append(length)
            base += length
    sizes = [len(firsts), len(lengths), *map(len, tables)]
    values = torch.tensor([*firsts, *lengths, *tables[0], *tables[1]], dtype=torch.int64)
    moved = beside(values, device)
    shift, repeats, single, several = torch.split(moved, sizes)
    slots = torch.repeat_interleave(shift, repeats, output_size=base)
    slots += torch.arange(base, device=device)
    return Pages(
        slots,
        Tiles(single.view(-1, 4), 1, longest[0]),
        Tiles(several.view(-1, 4), rows, longest[1]),
    )
