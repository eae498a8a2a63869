"""Multi-head latent attention (DeepSeek-V2 and V3, GLM-5), absorbed: the pool holds one vector a
token, and the matrices that would expand it to keys and values are applied to queries and to
results instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alipes.instance.engine.native.layout import Halves, Packer, Part
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.engine.native.rope import Rope
from alipes.instance.memory.specs import PagedLatent

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Every head's query has ``plain`` elements and ``rope.dim`` rotated ones; a token's latent
    has ``rank`` elements and one rotated key for all heads; a head's value has ``value``.
    Queries come from a vector of ``query_rank`` elements, or from the hidden state where that
    is None. Scores are products times ``scale``; ``eps`` is that of the norms of both
    compressed vectors. ``interleaved`` tells in which form the checkpoint has rotary rows. Heads
    are those of ``share``; what is compressed, and so the state, is the same in all ranks."""

    hidden: int
    heads: int
    query_rank: int | None
    rank: int
    plain: int
    value: int
    rope: Rope
    scale: float
    eps: float
    interleaved: bool
    share: Share = WHOLE

    @property
    def state(self) -> PagedLatent:
        return PagedLatent(self.rank + self.rope.dim)

    @property
    def _query(self) -> int:
        return self.plain + self.rope.dim

    def divided(self, share: Share) -> LatentAttention:
        heads = share.of(self.heads, "num_attention_heads")
        return replace(self, heads=heads, share=share)

    def pack(self, packer: Packer, source: str) -> None:
        own = self.share.rows
        attn, queries = source + "self_attn.", self.heads * self._query
        latent = Part(
            attn + "kv_a_proj_with_mqa.weight",
            (self.rank + self.rope.dim, self.hidden),
            self._halves(self.rank),
        )
        if self.query_rank is None:
            halves = self._halves(self.plain)
            plain = Part(attn + "q_proj.weight", (queries, self.hidden), halves, cut=own)
            packer.matrix("compress", plain, latent)
        else:
            inner = Part(attn + "q_a_proj.weight", (self.query_rank, self.hidden))
            packer.matrix("compress", inner, latent)
            packer.exact("q_norm", Part(attn + "q_a_layernorm.weight", (self.query_rank,)))
            shape = (queries, self.query_rank)
            up = Part(attn + "q_b_proj.weight", shape, self._halves(self.plain), cut=own)
            packer.matrix("q_up", up)
        packer.exact("kv_norm", Part(attn + "kv_a_layernorm.weight", (self.rank,)))
        rows = self.plain + self.value
        up = Part(attn + "kv_b_proj.weight", (self.heads * rows, self.rank), cut=own)
        packer.stack("kv_up", (up,), (self.heads, rows, self.rank))
        shape = (self.hidden, self.heads * self.value)
        packer.matrix("out", Part(attn + "o_proj.weight", shape, cut=self.share.columns))

    def _halves(self, before: int) -> Halves | None:
        """Of rows whose rotary ones come behind ``before`` others."""
        dim = self.rope.dim
        return None if self.interleaved else Halves(before + dim, before, dim)

    def forward(
        self,
        x: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        weights: Mapping[str, torch.Tensor],
        step: Pass,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """``state`` is one pool (slots, rank + rope.dim)."""
        kernels, batch, (pool,) = step.kernels, step.batch, state
        down = kernels.linear(x, weights["compress"], step.workspace)
        q, latents = down.tensor_split((down.shape[1] - pool.shape[1],), dim=1)
        self._compress(latents, weights, step)
        kernels.write_kv(pool, batch.slots, latents)
        if rows is not None and not len(rows):
            return x.new_empty(0, self.hidden)
        q = self._absorb(q, weights, step)
        if batch.pages is None:
            attended = kernels.attend_latent(
                q, latents, pool, batch.segments, self.rank, self.scale, step.workspace
            )
        else:
            attended = kernels.attend_latent_step(q, pool, batch.pages, self.rank, self.scale)
        if rows is not None:
            attended = attended.index_select(0, rows)
        # (H, rank, value): from the mean latent that a head has seen to its value.
        expand = weights["kv_up"][:, self.plain :].mT
        values = kernels.per_head(attended, expand, step.workspace)
        return kernels.linear(values.flatten(1), weights["out"], step.workspace)

    def _compress(
        self, latents: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> None:
        """Normalize and rotate (n, rank + rope.dim) in place."""
        inner = latents[:, : self.rank]
        inner.copy_(step.kernels.rms_norm(inner, weights["kv_norm"], self.eps))
        step.kernels.rope(latents[:, self.rank :].unsqueeze(1), step.angles[self.rope])

    def _absorb(
        self, q: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        """(n, H, rank + rope.dim): queries that meet latents as they would meet keys."""
        kernels = step.kernels
        if self.query_rank is not None:
            q = kernels.rms_norm(q, weights["q_norm"], self.eps)
            q = kernels.linear(q, weights["q_up"], step.workspace)
        q = q.reshape(len(q), self.heads, self._query)
        absorbed = q.new_empty(len(q), self.heads, self.rank + self.rope.dim)
        keys = weights["kv_up"][:, : self.plain]
        absorbed[..., : self.rank] = kernels.per_head(q[..., : self.plain], keys, step.workspace)
        rotary = absorbed[..., self.rank :]
        rotary.copy_(q[..., self.plain :])
        kernels.rope(rotary, step.angles[self.rope])
        return absorbed
