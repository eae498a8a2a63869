from __future__ import annotations

import torch

from alipes.instance.engine.native.batch import Batch
from alipes.instance.engine.native.passes import Pass
from alipes.instance.engine.native.states import bind_states
from alipes.instance.memory.plan import ModelPlan
from alipes.instance.memory.specs import PagedKV, PagedLatent, Recurrent
from alipes.kernels.shapes import Workspace
from alipes.kernels.table import REFERENCE

STATES = (Recurrent(((3,), (2, 4))), PagedKV(2, 8), Recurrent(((5,),)), PagedLatent(12))
PLAN = ModelPlan("m", 0, block_bytes=704, kv_blocks=3, context=12, slot_bytes=64, slots=2)
TOKENS = 4


def bound() -> tuple[torch.Tensor, tuple[tuple[torch.Tensor, ...], ...]]:
    kv = torch.zeros(PLAN.kv_bytes, dtype=torch.uint8)
    return kv.view(torch.float32), bind_states(STATES, kv, PLAN, TOKENS)


def test_every_state_has_its_own_shape_and_place() -> None:
    floats, states = bound()
    shapes = [[tuple(tensor.shape) for tensor in state] for state in states]
    assert shapes == [[(2, 3), (2, 2, 4)], [(12, 2, 2, 8)], [(2, 5)], [(12, 12)]]
    tensors = [tensor for state in states for tensor in state]
    for number, tensor in enumerate(tensors, 1):
        tensor.fill_(number)
    # The paged layers first, then slot by slot the recurrent tensors of all layers.
    slot = [1.0] * 3 + [2.0] * 8 + [4.0] * 5
    assert floats.tolist() == [3.0] * (12 * 32) + [5.0] * (12 * 12) + slot * 2


def test_recurrent_state_is_written_when_the_pass_has_succeeded() -> None:
    floats, states = bound()
    state, none = states[0][1], torch.empty(0, dtype=torch.int64)
    step = Pass(Batch(none, none, none, (), None, 0), {}, REFERENCE, Workspace(none, none))
    step.save(state, torch.tensor([1]), torch.ones(1, 2, 4))
    assert not floats.any()
    step.commit()
    assert state.flatten().tolist() == [0.0] * 8 + [1.0] * 8
    assert int(floats.sum()) == 8
