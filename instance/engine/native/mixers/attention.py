"""Attention with grouped queries over keys and values in blocks (Llama, Qwen3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alipes.instance.engine.native.layout import Halves, Packer, Part, Taken
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.engine.native.rope import Rope
from alipes.instance.memory.specs import PagedKV

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass


@dataclass(frozen=True, slots=True)
class Attention:
    """``heads`` query heads share ``kv_heads`` of ``dim`` elements each, of which the first
    ``rope.dim`` are rotated. Where ``norm_eps`` is given, queries and keys are normalized, head by
    head, before that, with weights stored as what they are more than one where ``centred``. Where
    ``gated``, each query comes with a gate, whose sigmoid multiplies what it attends to. All
    heads are those of ``share``."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    rope: Rope
    norm_eps: float | None
    gated: bool = False
    centred: bool = False
    share: Share = WHOLE

    @property
    def state(self) -> PagedKV:
        return PagedKV(self.kv_heads, self.dim)

    def divided(self, share: Share) -> Attention:
        heads = share.of(self.heads, "num_attention_heads")
        kv_heads = share.of(self.kv_heads, "num_key_value_heads")
        return replace(self, heads=heads, kv_heads=kv_heads, share=share)

    def pack(self, packer: Packer, source: str) -> None:
        rows = self.share.rows
        attn, halves = source + "self_attn.", Halves(self.dim, 0, self.rope.dim)
        q, k, v = (f"{attn}{one}_proj.weight" for one in "qkv")
        queries, keys = ((heads * self.dim, self.hidden) for heads in (self.heads, self.kv_heads))
        parts = [
            Part(q, queries, halves, cut=rows),
            Part(k, keys, halves, cut=rows),
            Part(v, keys, cut=rows),
        ]
        if self.gated:
            own, gates = (Taken(2 * self.dim, first, self.dim) for first in (0, self.dim))
            parts[0] = Part(q, queries, halves, own, cut=rows)
            parts.append(Part(q, queries, taken=gates, cut=rows))
        packer.matrix("qkv", *parts)
        if self.norm_eps is not None:
            plus = float(self.centred)
            for norm in ("q_norm", "k_norm"):
                packer.exact(norm, Part(f"{attn}{norm}.weight", (self.dim,), halves, plus=plus))
        out = Part(attn + "o_proj.weight", queries[::-1], cut=self.share.columns)
        packer.matrix("out", out)

    def forward(
        self,
        x: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        weights: Mapping[str, torch.Tensor],
        step: Pass,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """``state`` is one pool (slots, 2, K, D)."""
        kernels, batch, (pool,) = step.kernels, step.batch, state
        ends = self.heads, self.heads + 2 * self.kv_heads
        q, kv, gate = self._project(x, weights, step).tensor_split(ends, dim=1)
        kv = kv.view(-1, 2, self.kv_heads, self.dim)
        kernels.write_kv(pool, batch.slots, kv)
        if rows is not None and not len(rows):
            return x.new_empty(0, self.hidden)
        if batch.pages is None:
            attended = kernels.attend(q, kv, pool, batch.segments, step.workspace)
        else:
            attended = kernels.attend_step(q, pool, batch.pages)
        if rows is not None:
            attended, gate = attended.index_select(0, rows), gate.index_select(0, rows)
        if self.gated:
            attended.view(gate.shape).mul_(gate.sigmoid())
        return kernels.linear(attended, weights["out"], step.workspace)

    def _project(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        """(n, H + 2K, D): queries and keys, normalized where the family does and rotated,
        values; then H gates, if any."""
        kernels, rotated = step.kernels, self.heads + self.kv_heads
        qkv = kernels.linear(x, weights["qkv"], step.workspace).view(len(x), -1, self.dim)
        if self.norm_eps is not None:
            q, k = qkv[:, : self.heads], qkv[:, self.heads : rotated]
            q.copy_(kernels.rms_norm(q, weights["q_norm"], self.norm_eps))
            k.copy_(kernels.rms_norm(k, weights["k_norm"], self.norm_eps))
        kernels.rope(qkv[:, :rotated, : self.rope.dim], step.angles[self.rope])
        return qkv
