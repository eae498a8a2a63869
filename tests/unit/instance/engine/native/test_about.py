from __future__ import annotations

import dataclasses

import pytest
import torch

from alipes.instance.engine.native import about
from alipes.instance.engine.native.about import engine_facts
from alipes.instance.engine.native.staging import Switching
from alipes.instance.memory.device import PlainMemory
from alipes.instance.memory.plan import MemoryPlan
from alipes.instance.memory.specs import PagedKV, PagedLatent, Recurrent
from alipes.kernels.shapes import KvHeads
from alipes.kernels.table import CPU, Kernels, kernels_for

HALF = PagedKV(2, 64, "float16")
MODELS = {
    "half": (HALF, Recurrent(((4,),)), HALF),
    "latent": (PagedLatent(576, "float16"),),
    "full": (PagedKV(2, 64),),
}
OTHER = dataclasses.replace(CPU, attend=torch.nn.functional.scaled_dot_product_attention)


def column(device: torch.device, rows: int | None, held: frozenset[KvHeads]) -> Kernels:
    return OTHER if held == {("float16", 64)} else kernels_for(device, rows, held)


@pytest.mark.parametrize(
    ("names", "attend"),
    [
        (["half"], "_nn"),
        (["full", "latent"], "cpu_attention"),
        (["full", "half"], "cpu_attention+_nn"),
    ],
)
def test_kernels_of_all_models_are_told(
    monkeypatch: pytest.MonkeyPatch, names: list[str], attend: str
) -> None:
    monkeypatch.setattr(about, "kernels_for", column)
    plan, states = MemoryPlan(0, 0, 0, 64, ()), {name: MODELS[name] for name in names}
    facts = engine_facts(plan, states, 64, PlainMemory(64, torch.device("cpu")), Switching.H2D)
    assert facts.kernels["attend"] == attend
    assert facts.kernels["linear"] == "cpu"
    assert not {"attend_step", "attend_latent_step"} & set(facts.kernels)
