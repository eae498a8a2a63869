from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from alipes.instance.engine.native.intact import PIECE_PARTS, CheckedCopy, Places
from alipes.kernels.table import CPU

Tensor = torch.Tensor
PARTS, BLOCKS = 4, 3 * PIECE_PARTS // 4


def begun(
    fault: Callable[[Tensor, Tensor], None] | None = None, common: int = 0, ours: int = PARTS
) -> tuple[CheckedCopy, Tensor, Tensor, list[Places]]:
    """Copies of ``BLOCKS`` blocks; ``fault`` is done to the host's memory after each piece."""
    torch.manual_seed(1)
    pool = torch.randint(0, 255, (BLOCKS * PARTS, 32), dtype=torch.uint8)
    host = torch.zeros(BLOCKS * PARTS, 32, dtype=torch.uint8)
    rows, slabs = (torch.randperm(BLOCKS * PARTS).view(BLOCKS, PARTS) for _ in range(2))
    shared, written = torch.arange(PARTS) < common, torch.arange(PARTS) < ours
    blocks = [Places(r, s, shared, written) for r, s in zip(rows, slabs, strict=True)]

    def copy_out(pool: Tensor, rows: Tensor, host: Tensor, slabs: Tensor) -> None:
        CPU.copy_out(pool, rows, host, slabs)
        if fault is not None:
            fault(host, slabs)

    return CheckedCopy(pool, host, blocks, replace(CPU, copy_out=copy_out)), pool, host, blocks


def test_all_blocks_of_a_sound_copy_are_intact() -> None:
    copy, pool, host, blocks = begun()
    assert copy.take() == ()
    copy.run()
    assert len(copy.take()) == BLOCKS
    assert copy.take() == ()
    assert all(torch.equal(host[block.slabs], pool[block.rows]) for block in blocks)


def test_marks_are_of_what_all_ranks_have_in_common() -> None:
    marks = []
    for common, changed in ((0, 0), (0, 1), (2, 0), (2, 1), (2, 3)):
        copy, pool, _, blocks = begun(common=common)
        pool[blocks[5].rows[changed]] ^= 1
        copy.run()
        marks.append(copy.take())
    own, same, first, second, neither = marks
    assert len(set(own)) == 1
    assert own == same
    assert len(set(neither)) == BLOCKS
    assert [a == b for a, b in zip(first, neither, strict=True)] == [i != 5 for i in range(BLOCKS)]
    assert first[5] != second[5]


@pytest.mark.parametrize("block", [0, 70, BLOCKS - 1])
def test_nothing_from_a_torn_block_on_is_intact(block: int) -> None:
    torn = 0

    def fault(host: Tensor, slabs: Tensor) -> None:
        if torn in slabs:
            host[torn, 31] ^= 128

    copy, _, _, blocks = begun(fault)
    torn = int(blocks[block].slabs[2])
    copy.run()
    assert len(copy.take()) == block


def test_what_others_write_is_left_to_them() -> None:
    copy, pool, host, blocks = begun(common=PARTS, ours=1)
    copy.run()
    marks = copy.take()
    assert len(set(marks)) == BLOCKS
    for block in blocks:
        assert torch.equal(host[block.slabs[:1]], pool[block.rows[:1]])
        assert not host[block.slabs[1:]].any()
    whole, *_ = begun(common=PARTS)
    whole.run()
    assert whole.take() == marks
