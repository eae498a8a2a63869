"""Attention of prompts and of mixed batches by FlashInfer, over the pool as it lies.

Its kernels take keys and values of 16 bits, page by page, and schedule a whole batch beforehand:
``plan`` looks at tables on the host, and holds for all layers with the same heads. What it does on
a device is not taken on trust: where it is not built for a model's heads, does not build, or gives
other results than the reference, attention stays what it was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch

from alipes.kernels import reference
from alipes.kernels.shapes import KvHeads, Segment, Workspace
from alipes.kernels.table import Attend

Tensor = torch.Tensor

_DTYPES: Final = ("float16", "bfloat16")
_DIMS: Final = (64, 128, 256)
# Of a sum over 16-bit values, with queries and results rounded as well.
_TOLERANCE: Final = 1e-2

log = logging.getLogger("alipes.kernels")


class Wrapper(Protocol):
    """What is used of ``flashinfer.BatchPrefillWithPagedKVCacheWrapper``."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> Any: ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor: ...


class Wrap(Protocol):
    def __call__(self, float_workspace_buffer: Tensor, kv_layout: str) -> Wrapper: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """Of a batch of b calls, int32 on the host: where the rows of each begin, (b + 1,), and its
    pages, (b + 1,), in the list ``indices`` of all pages; how many slots of its last one are used,
    (b,)."""

    rows: Tensor
    pages: Tensor
    indices: Tensor
    last: Tensor


def tables(segments: Sequence[Segment]) -> Tables:
    """Raises ``ValueError`` where rows are not one segment's after another's."""
    page = segments[0].page
    rows, pages, indices, last = [0], [0], [], []
    for segment in segments:
        if segment.first != rows[-1]:
            raise ValueError(f"rows up to {segment.first} belong to no segment before it")
        rows.append(segment.first + segment.count)
        before = pages[-1]
        for slot, length in segment.runs:
            count = -(-length // page)
            indices.append(np.arange(slot // page, slot // page + count, dtype=np.int32))
            before += count
        pages.append(before)
        last.append((segment.start + segment.count - 1) % page + 1)
    small = (torch.tensor(one, dtype=torch.int32) for one in (rows, pages, last))
    first, second, third = small
    return Tables(first, second, torch.from_numpy(np.concatenate(indices)), third)


@dataclass(slots=True)
class _Planned:
    """A wrapper and the batch that it is planned for."""

    wrapper: Wrapper
    batch: object = field(default=None)


class FlashInferAttention:
    """``attend`` of the table. Each kind of heads has a wrapper of its own, with what it needs of
    memory: a plan lies there until the step's last layer has read it. It leaves from one piece of
    pinned memory, so the next batch may come only when results of this one were waited for, as
    every step does. ``processors`` are those of the device."""

    def __init__(self, wrap: Wrap, processors: int) -> None:
        self._wrap = wrap
        self._processors = processors
        self._planned: dict[tuple[object, ...], _Planned] = {}

    def attend(
        self, q: Tensor, kv: Tensor, pool: Tensor, segments: Sequence[Segment], workspace: Workspace
    ) -> Tensor:
        """As the reference, with queries and results rounded to the pool's dtype."""
        wrapper = self._wrapper(q, pool, segments)
        keys, values = pool.view(-1, segments[0].page, *pool.shape[1:]).unbind(2)
        attended = wrapper.run(q.to(pool.dtype).contiguous(), (keys, values))
        return attended.float().flatten(1)

    def _wrapper(self, q: Tensor, pool: Tensor, segments: Sequence[Segment]) -> Wrapper:
        """Planned once for all layers: they are given the same tuple. Batches in a list, which may
        change, are planned for anew."""
        heads = q.shape[1], pool.shape[2], pool.shape[3]
        kind = (*heads, pool.dtype, q.device)
        if kind not in self._planned:
            scratch = torch.empty(self._scratch(*heads), dtype=torch.uint8, device=q.device)
            self._planned[kind] = _Planned(self._wrap(scratch, "NHD"))
        planned = self._planned[kind]
        if planned.batch is not segments:
            planned.batch = None
            self._plan(planned.wrapper, heads, pool.dtype, q.device, segments)
            planned.batch = segments if isinstance(segments, tuple) else None
        return planned.wrapper

    def _plan(
        self,
        wrapper: Wrapper,
        heads: tuple[int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        segments: Sequence[Segment],
    ) -> None:
        """Tables in pinned memory: copies out of any other would wait for the device."""
        made = tables(segments)
        pinned = device.type == "cuda"
        wrapper.plan(
            _sent(made.rows, pinned),
            _sent(made.pages, pinned),
            _sent(made.indices, pinned),
            _sent(made.last, pinned),
            heads[0],
            heads[1],
            heads[2],
            segments[0].page,
            causal=True,
            q_data_type=dtype,
            kv_data_type=dtype,
        )

    def _scratch(self, queries: int, keys: int, dim: int) -> int:
        """Bytes for what parts of split contexts give, float32 with a log-sum-exp: two tiles for
        each processor, of the most rows that one has."""
        tiles, rows = max(1, 2 * self._processors // keys), 128 if dim < 256 else 64
        return tiles * queries * rows * (dim + 1) * 4 + 256


def _sent(part: Tensor, pinned: bool) -> Tensor:
    return part.pin_memory() if pinned else part


def attend_over(
    device: torch.device, held: frozenset[KvHeads], wrap: Wrap | None = None
) -> Attend | None:
    """FlashInfer's form for models with these heads; None where there is none or, as a line in the
    log then says, where it failed when it was tried."""
    if not all(dtype in _DTYPES and dim in _DIMS for dtype, dim in held):
        return None
    try:
        wrap = wrap or _installed()
        processors = _processors(device)
        for dtype, dim in sorted(held):
            _try(FlashInferAttention(wrap, processors), device, getattr(torch, dtype), dim)
    # A compiler that is missing, another version, a device too old: none of it keeps a model from
    # being served.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        log.warning("attention does without FlashInfer: %s: %s", type(error).__name__, reason)
        return None
    return FlashInferAttention(wrap, processors).attend


def _installed() -> Wrap:
    # Imports much, and builds kernels for what they are used with.
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    wrap: Wrap = BatchPrefillWithPagedKVCacheWrapper
    return wrap


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found


def _try(
    attention: FlashInferAttention, device: torch.device, dtype: torch.dtype, dim: int
) -> None:
    """A chunk behind a scattered prefix and a row far on; raises where the results are wrong."""
    page, keys = 16, 2
    segments = (
        Segment(0, 19, 30, ((96, 32), (16, 16), (64, 1)), page),
        Segment(19, 1, 150, ((128, 151),), page),
    )
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        pool = torch.randn(320, 2, keys, dim, generator=generator).to(device, dtype)
        q = torch.randn(20, 3 * keys, dim, generator=generator).to(device)
        none = q.new_empty(0)
        scratch = Workspace(none, none)
        got = attention.attend(q, none, pool, segments, scratch)
        want = reference.attend(q, none, pool, segments, scratch)
        worst = float((got - want).abs().max())
    if not worst < _TOLERANCE:
        raise ArithmeticError(f"it differs by {worst:.3g} for heads of {dim}")
