from __future__ import annotations

import torch

from alipes.instance.contract import Content
from alipes.instance.engine.native.batch import Batch
from alipes.instance.engine.native.passes import Pass
from alipes.instance.engine.native.states import bind_states
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import MemoryPlan, ModelPlan
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


def test_states_are_where_the_map_says() -> None:
    kv = torch.zeros(PLAN.kv_bytes, dtype=torch.uint8)
    states = bind_states(STATES, kv, PLAN, TOKENS)
    plan = MemoryPlan(PLAN.kv_bytes, 0, 0, 64, (PLAN,))
    [model] = memory_map(plan, {"m": STATES}, TOKENS).models
    places = {}
    for region in model.regions:
        each = region.rows * region.row_bytes if region.content is Content.KV else 0
        for number, layer in enumerate(region.layers):
            places[layer] = region.offset + number * each
    # Within a slot the recurrent layers follow each other: the last one after 44 bytes.
    places[2] += 44
    found = [state[0].data_ptr() - kv.data_ptr() for state in states]
    assert found == [places[layer] for layer in range(len(STATES))]


def test_recurrent_state_is_written_when_the_pass_has_succeeded() -> None:
    floats, states = bound()
    state, none = states[0][1], torch.empty(0, dtype=torch.int64)
    step = Pass(Batch(none, none, none, (), None, 0), {}, REFERENCE, Workspace(none, none))
    step.save(state, torch.tensor([1]), torch.ones(1, 2, 4))
    assert not floats.any()
    step.commit()
    assert state.flatten().tolist() == [0.0] * 8 + [1.0] * 8
    assert int(floats.sum()) == 8
