"""Copies by Triton against the reference; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.kernels import portable, reference

pytest.importorskip("triton")

from alipes.kernels import triton_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS = 9
FEW = settings(max_examples=15, deadline=None)
places = st.permutations(range(ROWS))
Moves = list[tuple[int, int, int]]


def random_bytes(*shape: int, device: torch.device = DEVICE) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)


@FEW
@given(places, places, st.integers(0, ROWS), st.sampled_from([8, 13, 8200]))
def test_rows_go_to_the_host_and_come_back(
    rows: list[int], slabs: list[int], count: int, width: int
) -> None:
    pool, host = random_bytes(ROWS, width), random_bytes(ROWS, width, device=torch.device("cpu"))
    host = host.pin_memory() if DEVICE.type == "cuda" else host
    taken, written = torch.tensor(rows[:count]).long(), torch.tensor(slabs[:count]).long()
    want = host.clone()
    reference.copy_out(pool, taken, want, written)
    triton_rows.copy_out(pool, taken, host, written)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(host, want)
    back = pool.clone()
    elsewhere = written.flip(0)
    reference.copy_in(host, written, back, elsewhere)
    triton_rows.copy_in(host, written, pool, elsewhere)
    assert torch.equal(pool, back)


def test_large_pieces_are_left_to_the_copy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(portable, "copy_out", lambda *_: called.append("copy engine"))
    monkeypatch.setattr(triton_rows, "_copy_rows", lambda *_: called.append("kernel"))
    pool = torch.empty(4, 64 << 10, dtype=torch.uint8)
    for slabs in ([0, 1, 2, 3], [0, 2, 1, 3]):
        triton_rows.copy_out(pool, torch.arange(4), pool, torch.tensor(slabs))
    assert called == ["copy engine", "kernel"]


@FEW
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 24)), max_size=6),
    st.sampled_from([1, 8]),
)
def test_moves_are_as_if_one_after_another(moves: Moves, unit: int) -> None:
    """Units of 8 bytes are copied as words; any may overlap any."""
    memory = random_bytes(64 * unit)
    given_moves = [(s * unit, t * unit, n * unit) for s, t, n in moves]
    by_kernel, by_copies, want = memory.clone(), memory.clone(), memory.clone()
    reference.move(want, given_moves)
    triton_rows.move(by_kernel, given_moves)
    portable.move(by_copies, given_moves)
    assert torch.equal(by_kernel, want)
    assert torch.equal(by_copies, want)


def test_a_long_move_is_copied_to_its_end() -> None:
    memory = random_bytes(3 << 20)
    moves = [(0, 2 << 20, (1 << 20) - 8), ((1 << 20) + 8, 8, 1000)]
    want = memory.clone()
    reference.move(want, moves)
    triton_rows.move(memory, moves)
    assert torch.equal(memory, want)
