"""The adapter over a stand-in for FlashInfer, which computes from the tables that it is given and
refuses what the real one refuses. That the real one agrees is for a GPU to say (``tests/gpu``)."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.kernels import flashinfer_attention, reference, table
from alipes.kernels.flashinfer_attention import FlashInferAttention, attend_over, tables
from alipes.kernels.shapes import Segment, Workspace
from alipes.kernels.table import kernels_for, variants

CPU = torch.device("cpu")
NO_SCRATCH = Workspace(torch.empty(0), torch.empty(0))
BLOCKS, BLOCK = 40, 8


class FakeWrapper:
    """Of ``BatchPrefillWithPagedKVCacheWrapper``: its arguments, checks and results."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert kv_layout == "NHD"
        assert float_workspace_buffer.data_ptr() % 16 == 0
        self.scratch = float_workspace_buffer
        self.plans = self.runs = 0

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        self.plans += 1
        given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        # On the device they would be read back, which waits for it.
        assert all(one.device == CPU and one.dtype == torch.int32 for one in given)
        batch = len(qo_indptr) - 1
        assert (len(paged_kv_indptr), len(paged_kv_last_page_len)) == (batch + 1, batch)
        for indptr in (qo_indptr, paged_kv_indptr):
            assert indptr[0] == 0
            assert (indptr.diff() > 0).all()
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        assert num_qo_heads % num_kv_heads == 0
        if q_data_type not in (torch.float16, torch.bfloat16) or q_data_type != kv_data_type:
            raise KeyError(f"no kernels for {q_data_type}, {kv_data_type}")
        assert causal
        self.tables = given
        self.heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        self.page, self.dtype = page_size, q_data_type

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        self.runs += 1
        keys, values = paged_kv_cache
        rows, pages, indices, last = self.tables
        if q.dtype != self.dtype or keys.dtype != self.dtype:
            raise ValueError(f"planned for {self.dtype}")
        if len(q) != rows[-1]:
            raise ValueError(f"planned for {rows[-1]} rows")
        assert q.shape[1:] == (self.heads[0], self.heads[2])
        assert q.stride(-1) == keys.stride(-1) == values.stride(-1) == 1
        assert keys.stride() == values.stride()
        assert keys.shape[1:] == values.shape[1:] == (self.page, *self.heads[1:])
        out = torch.zeros_like(q)
        for call in range(len(last)):
            table = indices[pages[call] : pages[call + 1]].long()
            length = (len(table) - 1) * self.page + int(last[call])
            held = [one[table].flatten(0, 1)[:length].float() for one in (keys, values)]
            own = slice(int(rows[call]), int(rows[call + 1]))
            out[own] = self.attend(q[own].float(), *held).to(q.dtype)
        return out

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """The last row sees all that there is."""
        out = torch.empty_like(q)
        group, seen = q.shape[1] // keys.shape[1], len(keys) - len(q)
        for row in range(len(q)):
            for head in range(q.shape[1]):
                scores = keys[: seen + row + 1, head // group] @ q[row, head]
                weights = (scores / math.sqrt(q.shape[2])).softmax(0)
                out[row, head] = weights @ values[: seen + row + 1, head // group]
        return out


class Made:
    """All wrappers that were made."""

    def __init__(self, kind: type[FakeWrapper] = FakeWrapper) -> None:
        self.wrappers: list[FakeWrapper] = []
        self._kind = kind

    def __call__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> FakeWrapper:
        self.wrappers.append(self._kind(float_workspace_buffer, kv_layout))
        return self.wrappers[-1]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Up to four calls over blocks of a shuffled pool; neighbours are one run, as in a step."""
    page = draw(st.sampled_from([1, BLOCK]))
    free = draw(st.permutations(range(BLOCKS)))
    segments, first = [], 0
    for _ in range(draw(st.integers(1, 4))):
        count, start = draw(st.sampled_from((1, 1, 2, 11))), draw(st.integers(0, 40))
        blocks = -(-(start + count) // BLOCK)
        taken, free = list(free[:blocks]), free[blocks:]
        if draw(st.booleans()):
            taken.sort()
        runs: list[tuple[int, int]] = []
        for index, block in enumerate(taken):
            length = min(BLOCK, start + count - BLOCK * index)
            if runs and sum(runs[-1]) == BLOCK * block:
                runs[-1] = (runs[-1][0], runs[-1][1] + length)
            else:
                runs.append((BLOCK * block, length))
        segments.append(Segment(first, count, start, tuple(runs), page))
        first += count
    return tuple(segments)


def unwritten(pool: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor:
    """With what no row sees made no number."""
    seen = torch.cat([segment.slots() for segment in segments])
    return torch.full_like(pool, float("nan")).index_copy_(0, seen, pool[seen])


@settings(max_examples=25, deadline=None)
@given(
    batches(),
    st.sampled_from([(1, 1, 16), (2, 3, 24)]),
    st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_it_is_the_reference(
    segments: tuple[Segment, ...], shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    keys, group, dim = shape
    torch.manual_seed(3)
    rows = sum(segment.count for segment in segments)
    pool = unwritten(torch.randn(BLOCKS * BLOCK, 2, keys, dim).to(dtype), segments)
    # A part of a wider projection, as in a model.
    q = torch.randn(rows, keys * (group + 2), dim)[:, : keys * group]
    made = Made()
    got = FlashInferAttention(made, 4).attend(q, torch.empty(0), pool, segments, NO_SCRATCH)
    want = reference.attend(q.to(dtype).float(), torch.empty(0), pool, segments, NO_SCRATCH)
    assert (got.dtype, got.shape) == (torch.float32, (rows, keys * group * dim))
    assert torch.equal(got, got.to(dtype).float())
    rounding = 1e-3 if dtype == torch.float16 else 8e-3
    torch.testing.assert_close(got, want, atol=rounding, rtol=rounding)


def test_tables_name_every_page_once() -> None:
    runs = ((24, 16), (0, 5))
    segments = (Segment(0, 3, 18, runs, 8), Segment(3, 1, 7, ((64, 8),), 8))
    made = tables(segments)
    assert made.rows.tolist() == [0, 3, 4]
    assert made.pages.tolist() == [0, 3, 4]
    assert made.indices.tolist() == [3, 4, 0, 8]
    assert made.last.tolist() == [5, 8]
    slots = tables((Segment(0, 3, 18, runs),))
    assert slots.indices.tolist() == [*range(24, 40), *range(5)]
    assert (slots.pages.tolist(), slots.last.tolist()) == ([0, 21], [1])
    with pytest.raises(ValueError, match="rows up to 4 belong to no segment"):
        tables((Segment(0, 3, 0, ((0, 3),)), Segment(4, 1, 0, ((8, 1),))))


def test_a_batch_is_planned_once_for_all_layers_of_a_kind() -> None:
    made = Made()
    attention = FlashInferAttention(made, 4)
    batch = (Segment(0, 2, 0, ((8, 2),)),)
    pools = [torch.randn(64, 2, heads, 16).half() for heads in (1, 1, 2, 1)]

    def attend(segments: Any) -> None:
        for pool in pools:
            attention.attend(torch.randn(2, 2, 16), torch.empty(0), pool, segments, NO_SCRATCH)

    attend(batch)
    # One that is planned keeps its tables until its last layer: others have memory of their own.
    assert [(one.plans, one.runs) for one in made.wrappers] == [(1, 3), (1, 1)]
    attend((Segment(0, 2, 0, ((16, 2),)),))
    attend(batch)
    assert [(one.plans, one.runs) for one in made.wrappers] == [(3, 9), (3, 3)]
    attend(list(batch))
    assert [(one.plans, one.runs) for one in made.wrappers] == [(6, 12), (4, 4)]


def test_a_plan_that_failed_is_not_taken_for_one() -> None:
    class Once(FakeWrapper):
        def plan(self, *args: Any, **changes: Any) -> None:
            if not self.plans:
                self.plans = 1
                raise RuntimeError("no room")
            super().plan(*args, **changes)

    attention = FlashInferAttention(Made(Once), 4)
    batch, pool = (Segment(0, 2, 0, ((8, 2),)),), torch.randn(64, 2, 1, 16).half()
    arguments = (torch.randn(2, 1, 16), torch.empty(0), pool, batch, NO_SCRATCH)
    with pytest.raises(RuntimeError, match="no room"):
        attention.attend(*arguments)
    assert attention.attend(*arguments).isfinite().all()


@pytest.mark.parametrize(("heads", "dim"), [((28, 4), 128), ((16, 2), 256), ((9, 3), 64)])
def test_scratch_is_what_the_largest_split_takes(heads: tuple[int, int], dim: int) -> None:
    """As its planner counts: as many tiles as two for each processor, among all key heads."""
    made, (queries, keys) = Made(), heads
    attention = FlashInferAttention(made, 132)
    pool = torch.zeros(8, 2, keys, dim, dtype=torch.float16)
    batch = (Segment(0, 1, 0, ((0, 1),)),)
    attention.attend(torch.zeros(1, queries, dim), pool, pool, batch, NO_SCRATCH)
    rows = queries * (2 * 132 // keys) * (64 if dim == 256 else 128)
    found = -(-rows * dim * 4 // 16) * 16 + rows * 4
    assert 0 <= made.wrappers[0].scratch.numel() - found < 1024


HALF = frozenset({("float16", 64)})


@pytest.mark.parametrize(
    "held", [{("float32", 64)}, {("float16", 80)}, {("float16", 64), ("float32", 128)}]
)
def test_other_heads_are_not_even_tried(held: set[tuple[str, int]]) -> None:
    made = Made()
    assert attend_over(CPU, frozenset(held), made) is None
    assert not made.wrappers


def test_heads_are_tried_before_they_are_served() -> None:
    made = Made()
    attend = attend_over(CPU, HALF | {("float16", 128)}, made)
    assert attend is not None
    tried = [(one.heads[2], one.plans, one.runs) for one in made.wrappers]
    assert tried == [(64, 1, 1), (128, 1, 1)]
    batch, pool = (Segment(0, 2, 0, ((8, 2),)),), torch.randn(64, 2, 1, 64).half()
    q = torch.randn(2, 4, 64)
    got = attend(q, torch.empty(0), pool, batch, NO_SCRATCH)
    want = reference.attend(q, torch.empty(0), pool, batch, NO_SCRATCH)
    torch.testing.assert_close(got, want, atol=2e-3, rtol=2e-3)


class Wrong(FakeWrapper):
    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """As if the first row saw one position and the last not all."""
        return super().attend(q, keys[: len(q)], values[: len(q)])


class NoNumbers(FakeWrapper):
    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.full_like(q, float("nan"))


class Unbuilt(FakeWrapper):
    def plan(self, *args: Any, **changes: Any) -> None:
        raise RuntimeError("\nNinja build failed.\n[1/4] nvcc ...")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Wrong, "ArithmeticError: it differs by [0-9.]+ for heads of 64"),
        (NoNumbers, "ArithmeticError: it differs by nan for heads of 64"),
        (Unbuilt, r"RuntimeError: Ninja build failed\."),
    ],
)
def test_what_fails_when_tried_is_left_alone(
    kind: type[FakeWrapper], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "alipes.kernels"):
        assert attend_over(CPU, HALF, Made(kind)) is None
    [record] = caplog.records
    told = record.getMessage()
    assert re.fullmatch(f"attention does without FlashInfer: {reason}", told)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device with FlashInfer and Triton, as far as the table can tell."""
    pytest.importorskip("triton")
    monkeypatch.setattr(table, "find_spec", lambda name: object())
    monkeypatch.setattr(flashinfer_attention, "_installed", Made)
    monkeypatch.setattr(flashinfer_attention, "_processors", lambda device: 4)

    def tried(attention: Any, device: torch.device, dtype: torch.dtype, dim: int) -> None:
        assert device.type == "cuda"

    monkeypatch.setattr(flashinfer_attention, "_try", tried)
    table._cuda.cache_clear()
    table._cuda_over.cache_clear()
    return torch.device("cuda")


def test_columns_have_it_where_it_fits(cuda: torch.device) -> None:
    column = kernels_for(cuda, None, HALF)
    assert variants(column)["attend"] == "flashinfer_attention"
    assert kernels_for(cuda, 3, HALF) is column
    others = variants(kernels_for(cuda, None, frozenset({("float32", 64)})))
    assert others["attend"] == "triton_attention"
    assert variants(column) == others | {"attend": "flashinfer_attention"}
    assert variants(kernels_for(cuda, None)) == others
    table._cuda_over.cache_clear()
