"""Attention with grouped queries over keys and values in blocks (Llama, Qwen3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alipes.instance.engine.native.layout import Halves, Packer, Part
from alipes.instance.engine.native.rope import Rope
from alipes.instance.memory.specs import PagedKV

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass


@dataclass(frozen=True, slots=True)
class Attention:
    """``heads`` query heads share ``kv_heads`` of ``dim`` elements each. Where ``norm_eps`` is
    given, queries and keys are normalized, head by head, before they are rotated."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    rope: Rope
    norm_eps: float | None

    @property
    def state(self) -> PagedKV:
        return PagedKV(self.kv_heads, self.dim)

    def pack(self, packer: Packer, source: str) -> None:
        attn, halves = source + "self_attn.", Halves(self.dim, 0, self.dim)
        keys = (self.kv_heads * self.dim, self.hidden)
        packer.matrix(
            "qkv",
            Part(attn + "q_proj.weight", (self.heads * self.dim, self.hidden), halves),
            Part(attn + "k_proj.weight", keys, halves),
            Part(attn + "v_proj.weight", keys),
        )
        if self.norm_eps is not None:
            for norm in ("q_norm", "k_norm"):
                packer.exact(norm, Part(f"{attn}{norm}.weight", (self.dim,), halves))
        packer.matrix("out", Part(attn + "o_proj.weight", (self.hidden, self.heads * self.dim)))

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
        q, kv = self._project(x, weights, step).tensor_split((self.heads,), dim=1)
        kv = kv.view(-1, 2, self.kv_heads, self.dim)
        kernels.write_kv(pool, batch.slots, kv)
        if rows is not None and not len(rows):
            return x.new_empty(0, self.hidden)
        attended = kernels.attend(q, kv, pool, batch.segments, step.workspace)
        if rows is not None:
            attended = attended.index_select(0, rows)
        return kernels.linear(attended, weights["out"], step.workspace)

    def _project(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        """(n, H + 2K, D): queries and keys, normalized where the family does and rotated,
        values."""
        kernels, rotated = step.kernels, self.heads + self.kv_heads
        qkv = kernels.linear(x, weights["qkv"], step.workspace).view(len(x), -1, self.dim)
        if self.norm_eps is not None:
            q, k = qkv[:, : self.heads], qkv[:, self.heads : rotated]
            q.copy_(kernels.rms_norm(q, weights["q_norm"], self.norm_eps))
            k.copy_(kernels.rms_norm(k, weights["k_norm"], self.norm_eps))
        kernels.rope(qkv[:, :rotated], step.angles[self.rope])
        return qkv
