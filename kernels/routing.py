"""How tokens choose experts, as a value; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """Each token goes to the ``top_k`` experts of the highest scores: softmax over all, or each
    one's sigmoid. Where experts lie in ``groups``, only those of the ``top_groups`` may be
    chosen whose ``group_best`` best experts have the highest sum. The scores of the chosen are
    their weights, made to sum to one if ``normalize``, times ``scale``."""

    top_k: int
    normalize: bool
    sigmoid: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scale: float = 1.0
