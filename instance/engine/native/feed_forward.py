"""The feed-forward halves of layers: one gated network, or a choice among many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from alipes.instance.engine.native.layout import Packer, Part
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.kernels.routing import Routing

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass


@dataclass(frozen=True, slots=True)
class Dense:
    """down(silu(gate(x)) * up(x)), of which ``intermediate`` elements are in ``share``."""

    hidden: int
    intermediate: int
    share: Share = WHOLE

    def divided(self, share: Share) -> Dense:
        inner = share.of(self.intermediate, "intermediate_size")
        return replace(self, intermediate=inner, share=share)

    def pack(self, packer: Packer, source: str) -> None:
        pack_gated(packer, "", source + "mlp.", self.hidden, self.intermediate, self.share)

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        return gated(x, weights["gate_up"], weights["down"], step)


@dataclass(frozen=True, slots=True)
class Experts:
    """Each token goes through some of ``count`` gated networks and, where ``shared`` is not 0,
    through one of that intermediate size besides. ``biased`` tells whether the choice among
    them is corrected by a bias of each. Every rank has a ``share`` of every network."""

    hidden: int
    intermediate: int
    count: int
    routing: Routing
    shared: int = 0
    biased: bool = False
    share: Share = WHOLE

    def divided(self, share: Share) -> Experts:
        inner = share.of(self.intermediate, "moe_intermediate_size")
        shared = share.of(self.shared, "n_shared_experts")
        return replace(self, intermediate=inner, shared=shared, share=share)

    def pack(self, packer: Packer, source: str) -> None:
        rows, columns = self.share.rows, self.share.columns
        mlp, inner = source + "mlp.", (self.intermediate, self.hidden)
        packer.exact("router", Part(mlp + "gate.weight", (self.count, self.hidden)))
        if self.biased:
            bias = Part(mlp + "gate.e_score_correction_bias", (self.count,))
            packer.exact("router_bias", bias)
        gate_up, down = [], []
        for expert in range(self.count):
            name = f"{mlp}experts.{expert}."
            gate_up += [
                Part(f"{name}{kind}_proj.weight", inner, cut=rows) for kind in ("gate", "up")
            ]
            down.append(Part(name + "down_proj.weight", inner[::-1], cut=columns))
        read = self.routing.top_k / self.count
        shape = (self.count, 2 * self.intermediate, self.hidden)
        packer.stack("experts_gate_up", tuple(gate_up), shape, read)
        shape = (self.count, self.hidden, self.intermediate)
        packer.stack("experts_down", tuple(down), shape, read)
        if self.shared:
            name = mlp + "shared_experts."
            pack_gated(packer, "shared_", name, self.hidden, self.shared, self.share)

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        bias = weights["router_bias"] if self.biased else None
        routed = step.kernels.route(x, weights["router"], bias, self.routing)
        stacks = weights["experts_gate_up"], weights["experts_down"]
        out = step.kernels.experts(x, *routed, *stacks, step.workspace)
        if self.shared:
            out.add_(gated(x, weights["shared_gate_up"], weights["shared_down"], step))
        return out


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """``experts``, and beside them one gated network for every token, times a sigmoid of it."""

    experts: Experts
    intermediate: int

    def divided(self, share: Share) -> SharedExpert:
        inner = share.of(self.intermediate, "shared_expert_intermediate_size")
        return SharedExpert(self.experts.divided(share), inner)

    def pack(self, packer: Packer, source: str) -> None:
        self.experts.pack(packer, source)
        mlp, hidden, share = source + "mlp.", self.experts.hidden, self.experts.share
        packer.exact("shared_gate", Part(mlp + "shared_expert_gate.weight", (1, hidden)))
        pack_gated(packer, "shared_", mlp + "shared_expert.", hidden, self.intermediate, share)

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        shared = gated(x, weights["shared_gate_up"], weights["shared_down"], step)
        gate = step.kernels.linear(x, weights["shared_gate"], step.workspace)
        return self.experts.forward(x, weights, step).addcmul_(shared, gate.sigmoid())


def pack_gated(
    packer: Packer, to: str, source: str, hidden: int, intermediate: int, share: Share
) -> None:
    """A gated network as ``to`` gate_up (2i, hidden) and ``to`` down (hidden, i)."""
    inner, rows = (intermediate, hidden), share.rows
    gate_up = (Part(f"{source}{kind}_proj.weight", inner, cut=rows) for kind in ("gate", "up"))
    packer.matrix(to + "gate_up", *gate_up)
    packer.matrix(to + "down", Part(source + "down_proj.weight", inner[::-1], cut=share.columns))


def gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, step: Pass) -> torch.Tensor:
    inner = step.kernels.silu_mul(step.kernels.linear(x, gate_up, step.workspace))
    return step.kernels.linear(inner, down, step.workspace)
