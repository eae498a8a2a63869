"""Gated delta net: a state of one size for each head, forgotten and corrected by every token
(Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from alipes.instance.engine.native.layout import Packer, Part, Taken
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.memory.specs import Recurrent

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass

UNIT_EPS: Final = 1e-6
"""Added to the squared length of queries and keys before they are divided by it, in all models."""


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """``heads`` value heads of ``size`` elements share ``key_heads`` of ``key_size`` for keys and
    queries; all three see the last ``width`` tokens through a convolution. Its input matrices are
    stored by key head where ``fused``, apart from one another where not. All heads are those of
    ``share``."""

    hidden: int
    key_heads: int
    heads: int
    key_size: int
    size: int
    width: int
    eps: float
    fused: bool
    share: Share = WHOLE

    @property
    def state(self) -> Recurrent:
        return Recurrent(((self.heads, self.key_size, self.size), (self.channels, self.width - 1)))

    @property
    def rope(self) -> None:
        return None

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.heads * self.size

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    def divided(self, share: Share) -> GatedDelta:
        key_heads = share.of(self.key_heads, "linear_num_key_heads")
        heads = share.of(self.heads, "linear_num_value_heads")
        return replace(self, key_heads=key_heads, heads=heads, share=share)

    def pack(self, packer: Packer, source: str) -> None:
        net, rows = source + "linear_attn.", self.share.rows
        packer.matrix("inputs", *(self._fused(net) if self.fused else self._apart(net)))
        packer.exact("conv", *self._qkv(net + "conv1d.weight", 1, self.width))
        packer.exact("rate", Part(net + "A_log", (self.heads,), cut=rows))
        packer.exact("bias", Part(net + "dt_bias", (self.heads,), cut=rows))
        packer.exact("norm", Part(net + "norm.weight", (self.size,)))
        shape = (self.hidden, self.values)
        packer.matrix("out", Part(net + "out_proj.weight", shape, cut=self.share.columns))

    def _fused(self, net: str) -> list[Part]:
        """The rows of queries, keys, values, gates, what to write and what to forget, each of
        which makes up some of the rows of every key head."""
        group = self.heads // self.key_heads
        qkvz = (self.key_size, self.key_size, group * self.size, group * self.size)
        parts = []
        for name, counts in (("qkvz", qkvz), ("ba", (group, group))):
            first = 0
            for count in counts:
                taken = Taken(sum(counts), first, count)
                shape = (self.key_heads * count, self.hidden)
                source = f"{net}in_proj_{name}.weight"
                parts.append(Part(source, shape, taken=taken, cut=self.share.rows))
                first += count
        return parts

    def _apart(self, net: str) -> list[Part]:
        """The same rows."""
        others = {"z": self.values, "b": self.heads, "a": self.heads}
        return self._qkv(net + "in_proj_qkv.weight", self.hidden) + [
            Part(f"{net}in_proj_{name}.weight", (count, self.hidden), cut=self.share.rows)
            for name, count in others.items()
        ]

    def _qkv(self, name: str, *shape: int) -> list[Part]:
        """Of rows that are all queries, then all keys, then all values, those of this rank."""
        rank, ranks = self.share.rank, self.share.ranks
        parts, begin = [], 0
        for count in (self.keys, self.keys, self.values):
            taken = Taken(ranks * self.channels, begin + rank * count, count)
            parts.append(Part(name, (count, *shape), taken=taken))
            begin += ranks * count
        return parts

    def forward(
        self,
        x: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        weights: Mapping[str, torch.Tensor],
        step: Pass,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """``state`` is two pools: (slots, H, E, D) and (slots, channels, width - 1)."""
        kernels = step.kernels
        inputs = kernels.linear(x, weights["inputs"], step.workspace)
        ends = (self.channels, self.channels + self.values, inputs.shape[1] - self.heads)
        seen, gate, b, a = inputs.tensor_split(ends, dim=1)
        conv = weights["conv"].view(self.channels, self.width)
        seen = step.carry(
            state[1],
            (seen,),
            lambda x, states: kernels.conv_step(x, conv, states),
            lambda x, one: kernels.conv_chunk(x, conv, one),
        )
        q, k, v = seen.tensor_split((self.keys, 2 * self.keys), dim=1)
        q, k = (
            kernels.l2_norm(one.view(-1, self.key_heads, self.key_size), UNIT_EPS) for one in (q, k)
        )
        read = (q.mul_(self.key_size**-0.5), k, v.view(-1, self.heads, self.size))
        gates = kernels.delta_gates(a, b, weights["rate"], weights["bias"])
        out = step.carry(state[0], read + gates, kernels.delta_step, kernels.delta_chunk)
        if rows is not None:
            out, gate = out.index_select(0, rows), gate.index_select(0, rows)
        normed = kernels.gated_norm(out, weights["norm"], gate.reshape(out.shape), self.eps)
        return kernels.linear(normed.flatten(1), weights["out"], step.workspace)
