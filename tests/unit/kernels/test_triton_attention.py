"""Attention by Triton against the reference; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alipes.kernels import reference
from alipes.kernels.paging import Pager, lay_out
from alipes.kernels.shapes import PageTable, Segment, Workspace

pytest.importorskip("triton")

from alipes.kernels import triton_attention
from alipes.kernels.triton_attention import PagedAttention, attend_latent_step, attend_step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS, BLOCK = 40, 8
NO_SCRATCH = Workspace(torch.empty(0), torch.empty(0))
DTYPES = st.sampled_from([torch.float32, torch.float16])
FEW = settings(max_examples=12, deadline=None)
FEW_SHARED = settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Up to four calls over blocks of a shuffled pool, so that the runs of some are scattered,
    and the last block is filled in part."""
    free = draw(st.permutations(range(BLOCKS)))
    segments, first = [], 0
    for _ in range(draw(st.integers(1, 4))):
        count, start = draw(st.sampled_from((1, 1, 2, 11, 17))), draw(st.integers(0, 40))
        blocks = -(-(start + count) // BLOCK)
        taken, free = list(free[:blocks]), free[blocks:]
        if draw(st.booleans()):
            taken.sort()
        lengths = [min(BLOCK, start + count - BLOCK * index) for index in range(blocks)]
        runs = tuple((BLOCK * b, n) for b, n in zip(taken, lengths, strict=True))
        segments.append(Segment(first, count, start, runs))
        first += count
    return tuple(segments)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def check(
    segments: tuple[Segment, ...],
    keys: int,
    group: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    torch.manual_seed(3)
    rows = sum(segment.count for segment in segments)
    pool = torch.randn(BLOCKS * BLOCK, 2, keys, dim, device=DEVICE).to(dtype)
    qkv = torch.randn(rows, keys * (group + 2), dim, device=DEVICE)
    q, kv = qkv[:, : keys * group], qkv[:, keys * group :].view(rows, 2, keys, dim)
    got = PagedAttention().attend(q, kv, pool, segments, NO_SCRATCH)
    close(got, reference.attend(q, kv, pool, segments, NO_SCRATCH))


@FEW
@given(batches(), st.sampled_from([(1, 1, 16), (2, 3, 24), (1, 17, 8), (2, 2, 144)]), DTYPES)
def test_attend(
    segments: tuple[Segment, ...], shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    check(segments, *shape, dtype)


@FEW
@given(batches(), st.sampled_from([(1, 16, 4), (5, 18, 6), (20, 136, 8), (2, 16, 0)]), DTYPES)
def test_attend_latent(
    segments: tuple[Segment, ...], shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    heads, rank, rest = shape
    torch.manual_seed(4)
    rows = sum(segment.count for segment in segments)
    pool = torch.randn(BLOCKS * BLOCK, rank + rest, device=DEVICE).to(dtype)
    q = torch.randn(rows, heads, rank + rest, device=DEVICE)
    latents = torch.empty(0)
    got = PagedAttention().attend_latent(q, latents, pool, segments, rank, 0.3, NO_SCRATCH)
    close(got, reference.attend_latent(q, latents, pool, segments, rank, 0.3, NO_SCRATCH))


@st.composite
def tables(draw: st.DrawFn) -> PageTable:
    """Up to four rows in blocks of a shuffled pool; what is beyond their positions is any block."""
    width, count = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    positions = draw(st.lists(st.integers(0, width * BLOCK - 1), min_size=count, max_size=count))
    blocks = draw(st.permutations(range(BLOCKS)))[: count * width]
    shaped = torch.tensor(blocks, dtype=torch.int32, device=DEVICE).view(count, width)
    return PageTable(shaped, torch.tensor(positions, device=DEVICE), BLOCK)


def segments_of(pages: PageTable) -> tuple[Segment, ...]:
    segments = []
    for row, (blocks, position) in enumerate(
        zip(pages.blocks.tolist(), pages.positions.tolist(), strict=True)
    ):
        lengths = [min(BLOCK, position + 1 - at * BLOCK) for at in range(position // BLOCK + 1)]
        runs = tuple((BLOCK * b, n) for b, n in zip(blocks, lengths, strict=False))
        segments.append(Segment(row, 1, position, runs))
    return tuple(segments)


def unwritten(pool: torch.Tensor, pages: PageTable) -> torch.Tensor:
    """With what no row sees made no number."""
    seen = torch.cat([segment.slots() for segment in segments_of(pages)]).to(pool.device)
    blank = torch.full_like(pool, float("nan"))
    return blank.index_copy_(0, seen, pool[seen])


@pytest.fixture
def three_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "_SPAN", 16)
    monkeypatch.setattr(triton_attention, "_SPLITS", 3)


@pytest.mark.usefixtures("three_splits")
@FEW_SHARED
@given(tables(), st.sampled_from([(1, 1, 16), (2, 3, 24), (2, 2, 144)]), DTYPES)
def test_attend_step(pages: PageTable, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    keys, group, dim = shape
    torch.manual_seed(5)
    pool = torch.randn(BLOCKS * BLOCK, 2, keys, dim, device=DEVICE).to(dtype)
    pool = unwritten(pool, pages)
    q = torch.randn(len(pages.positions), keys * group, dim, device=DEVICE)
    want = reference.attend(q, torch.empty(0), pool, segments_of(pages), NO_SCRATCH)
    close(attend_step(q, pool, pages), want)
    close(reference.attend_step(q, pool, pages), want)


@pytest.mark.usefixtures("three_splits")
@FEW_SHARED
@given(tables(), st.sampled_from([(1, 16, 4), (5, 18, 6), (20, 136, 8)]), DTYPES)
def test_attend_latent_step(
    pages: PageTable, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    heads, rank, rest = shape
    torch.manual_seed(6)
    pool = unwritten(torch.randn(BLOCKS * BLOCK, rank + rest, device=DEVICE).to(dtype), pages)
    q = torch.randn(len(pages.positions), heads, rank + rest, device=DEVICE)
    segments, none = segments_of(pages), torch.empty(0)
    want = reference.attend_latent(q, none, pool, segments, rank, 0.3, NO_SCRATCH)
    close(attend_latent_step(q, pool, pages, rank, 0.3), want)
    close(reference.attend_latent_step(q, pool, pages, rank, 0.3), want)


@pytest.mark.parametrize("spans", [1, 2, 3, 64])
def test_splits_are_merged_even_where_a_short_call_leaves_some_empty(
    monkeypatch: pytest.MonkeyPatch, spans: int
) -> None:
    monkeypatch.setattr(triton_attention, "_SPAN", 40)
    monkeypatch.setattr(triton_attention, "_SPLITS", spans)
    check((Segment(0, 1, 190, ((64, 191),)), Segment(1, 1, 2, ((8, 3),))), 1, 2, 16)


def test_pages_hold_every_position_once_and_every_row_in_one_tile() -> None:
    segments = (Segment(0, 5, 2, ((30, 4), (8, 3))), Segment(5, 1, 3, ((40, 4),)))
    pages = lay_out(segments, 2, torch.device("cpu"))
    assert pages.slots.tolist() == [30, 31, 32, 33, 8, 9, 10, 40, 41, 42, 43]
    assert pages.several.table.tolist() == [[0, 2, 2, 0], [2, 2, 4, 0], [4, 1, 6, 0]]
    assert pages.single.table.tolist() == [[5, 1, 3, 7]]
    assert (pages.several.longest, pages.single.longest) == (7, 4)


def test_a_batch_is_laid_out_once_for_all_layers() -> None:
    pager, cpu = Pager(), torch.device("cpu")
    batch = (Segment(0, 1, 0, ((8, 1),)),)
    pages = pager.pages(batch, 4, cpu)
    assert pager.pages(batch, 4, cpu) is pages
    assert pager.pages(batch, 8, cpu) is not pages
    changing = [Segment(0, 1, 0, ((8, 1),))]
    assert pager.pages(changing, 4, cpu).slots.tolist() == [8]
    changing[0] = Segment(0, 1, 0, ((16, 1),))
    assert pager.pages(changing, 4, cpu).slots.tolist() == [16]
