"""The state of every layer as views of the KV region (see ``alipes.instance.memory.plan``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from alipes.instance.memory.plan import ModelPlan
from alipes.instance.memory.specs import PagedKV, Recurrent, StateSpec
from alipes.kernels.shapes import KvHeads

Tensor = torch.Tensor


def heads_held(states: Sequence[StateSpec]) -> frozenset[KvHeads]:
    """The keys and values of all layers, as ``kernels_for`` asks for them."""
    return frozenset((s.dtype, s.dim) for s in states if isinstance(s, PagedKV))


def bind_states(
    states: Sequence[StateSpec], kv: Tensor, plan: ModelPlan, block_tokens: int
) -> tuple[tuple[Tensor, ...], ...]:
    """Views of ``kv`` (bytes,) uint8, one tuple a layer: a pool (positions, 2, K, D) of keys and
    values, a pool (positions, dim) of latents, or (slots, *shape) for each recurrent tensor,
    neighbouring slots being ``slot_bytes`` apart."""
    paged = plan.kv_blocks * plan.block_bytes
    slots = kv[paged : paged + plan.slots * plan.slot_bytes].view(plan.slots, plan.slot_bytes)
    bound, at, inside = [], 0, 0
    for state in states:
        if isinstance(state, Recurrent):
            bound.append(_recurrent(state, slots[:, inside : inside + state.nbytes]))
            inside += state.nbytes
        else:
            positions = plan.kv_blocks * block_tokens
            nbytes = positions * state.token_bytes
            pool = kv[at : at + nbytes].view(getattr(torch, state.dtype))
            shape = (2, state.heads, state.dim) if isinstance(state, PagedKV) else (state.dim,)
            bound.append((pool.view(positions, *shape),))
            at += nbytes
    return tuple(bound)


def _recurrent(state: Recurrent, slots: Tensor) -> tuple[Tensor, ...]:
    """``slots`` (slots, bytes of this layer) uint8, strided."""
    flat = slots.view(getattr(torch, state.dtype))
    sizes = [torch.Size(shape).numel() for shape in state.shapes]
    parts: tuple[Tensor, ...] = torch.split(flat, sizes, dim=1)
    return tuple(part.view(-1, *shape) for part, shape in zip(parts, state.shapes, strict=True))
