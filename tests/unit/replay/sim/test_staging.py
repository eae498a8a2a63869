from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.engine.protocol import Staged
from alipes.replay.sim.costs import EngineCosts, engine_costs
from alipes.replay.sim.hardware import Hardware, Quantity, load_hardware, profiles
from alipes.replay.sim.staging import StagingModel

SECOND = 10**9
FIRST, SECOND_MODEL = "qwen3-235b", "glm5-nvfp4"


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return load_hardware("b200-tp8")


def model_of(hardware: Hardware, enabled: bool = True) -> StagingModel:
    return StagingModel("i0", hardware, costs_of(hardware), enabled)


def costs_of(hardware: Hardware) -> dict[str, EngineCosts]:
    return {name: engine_costs(hardware, name) for name in hardware.models}


def test_the_first_switch_loads_from_the_host(hardware: Hardware) -> None:
    staging = model_of(hardware)
    duration, record = staging.switch(FIRST, 5 * SECOND)
    weights = costs_of(hardware)[FIRST].weight_bytes
    assert duration == costs_of(hardware)[FIRST].switch(weights, 0)
    assert record.instance == "i0"
    assert (record.at, record.model, record.path) == (5.0, FIRST, "h2d")
    assert (record.h2d_bytes, record.d2d_bytes) == (weights, 0)
    assert record.seconds == duration / 1e9


def test_staging_goes_on_at_its_share_of_the_link(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    staging.serving(SECOND_MODEL, 0, SECOND, 100)
    rate = hardware.staging_share.value * hardware.rates.h2d.value
    assert 0 <= rate - staging.staged.covered_bytes < hardware.staging_chunk
    # In pieces it is the same.
    other = model_of(hardware)
    other.switch(FIRST, 0)
    for piece in range(1000):
        other.serving(SECOND_MODEL, piece * SECOND // 1000, (piece + 1) * SECOND // 1000, 100)
    assert abs(other.staged.covered_bytes - staging.staged.covered_bytes) <= hardware.staging_chunk


def test_a_whole_model_staged_switches_within_the_device(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    staging.serving(SECOND_MODEL, 0, 100 * SECOND, 100)
    weights = costs_of(hardware)[SECOND_MODEL].weight_bytes
    assert staging.staged.covered == {SECOND_MODEL: weights}
    duration, record = staging.switch(SECOND_MODEL, 0)
    assert (record.path, record.d2d_bytes, record.h2d_bytes) == ("d2d", weights, 0)
    assert duration == pytest.approx(0.106e9, rel=0.01)
    # Then the area is another model's and holds nothing.
    assert staging.staged.covered_bytes == 0
    assert staging.switch(FIRST, 0)[1].path == "h2d"


def test_part_of_a_model_comes_from_the_host(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    staging.serving(SECOND_MODEL, 0, SECOND, 100)
    staged = staging.staged.covered_bytes
    duration, record = staging.switch(SECOND_MODEL, 0)
    assert (record.path, record.d2d_bytes) == ("partial", staged)
    assert duration == costs_of(hardware)[SECOND_MODEL].switch(record.h2d_bytes, staged)


def test_rows_in_use_leave_no_room_and_spoil_what_is_there(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    rows = costs_of(hardware)[FIRST].kv_blocks
    staging.serving(SECOND_MODEL, 0, 100 * SECOND, 0)
    full, slack = staging.staged.covered_bytes, staging.staged.slack_bytes
    staging.serving(SECOND_MODEL, 100 * SECOND, 100 * SECOND, rows // 4 * 3)
    assert 0 < staging.staged.covered_bytes < full
    assert staging.staged.slack_bytes < slack
    staging.serving(SECOND_MODEL, 100 * SECOND, 200 * SECOND, rows)
    assert (staging.staged.covered_bytes, staging.staged.slack_bytes) == (0, 0)
    staging.serving(SECOND_MODEL, 200 * SECOND, 300 * SECOND, 0)
    assert (staging.staged.covered_bytes, staging.staged.slack_bytes) == (full, slack)


def test_a_writer_without_room_does_not_save_up(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    rows = costs_of(hardware)[FIRST].kv_blocks
    staging.serving(SECOND_MODEL, 0, 100 * SECOND, rows)
    staging.serving(SECOND_MODEL, 100 * SECOND, 100 * SECOND + 1, 0)
    assert staging.staged.covered_bytes == 0


def test_a_change_of_plans_begins_with_another_and_keeps_what_is_there(hardware: Hardware) -> None:
    staging = model_of(hardware)
    staging.switch(FIRST, 0)
    staging.serving(SECOND_MODEL, 0, SECOND, 0)
    staged = staging.staged.covered_bytes
    staging.serving(None, SECOND, 2 * SECOND, 0)
    assert staging.staged.covered_bytes == staged
    staging.serving("qwen3.5-122b-a10b", 2 * SECOND, 2 * SECOND, 0)
    assert staging.staged.covered_bytes == 0
    assert staging.switch(SECOND_MODEL, 0)[1].d2d_bytes == staged


def test_without_staging_all_comes_from_the_host(hardware: Hardware) -> None:
    staging = model_of(hardware, enabled=False)
    staging.switch(FIRST, 0)
    staging.serving(SECOND_MODEL, 0, 100 * SECOND, 0)
    assert staging.staged == Staged()
    assert staging.switch(SECOND_MODEL, 0)[1].path == "h2d"


def test_a_chunk_holds_at_least_a_row(hardware: Hardware) -> None:
    """A profile that names no layers has one stretch of whole blocks."""
    glm = msgspec.structs.replace(hardware.models[SECOND_MODEL], layers=1)
    share = Quantity(1.0, assumed="all of it")
    hardware = msgspec.structs.replace(
        hardware,
        models={**hardware.models, SECOND_MODEL: glm},
        staging_chunk=1 << 20,
        staging_share=share,
    )
    staging = model_of(hardware)
    staging.switch(SECOND_MODEL, 0)
    staging.serving(FIRST, 0, SECOND, 0)
    assert 0 <= hardware.rates.h2d.value - staging.staged.covered_bytes < 64 * 436_800


def test_weights_that_leave_stay_while_there_is_room(hardware: Hardware) -> None:
    staging = model_of(msgspec.structs.replace(hardware, exchange=True))
    names = list(hardware.models)
    for name in names:
        assert staging.switch(name, 0)[1].path == "h2d"
    weights = {name: costs.weight_bytes for name, costs in costs_of(hardware).items()}
    assert staging.staged.covered == {name: weights[name] for name in names[:-1]}
    for name in names:
        assert staging.switch(name, 0)[1].h2d_bytes == 0
    # Until KV needs their place.
    rows = costs_of(hardware)[names[-1]].kv_blocks
    staging.serving(None, 0, SECOND, rows)
    assert staging.staged.covered == {}
    assert staging.switch(names[0], 0)[1].path == "h2d"


@pytest.mark.parametrize(
    "profile", [name for name in profiles() if len(load_hardware(name).models) > 1]
)
@given(data=st.data(), exchange=st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_switch_is_slower_than_it_would_be_without_staging(
    profile: str, data: st.DataObject, exchange: bool
) -> None:
    """Switch by switch, beside the same one from the host."""
    hardware = msgspec.structs.replace(load_hardware(profile), exchange=exchange)
    costs, staging = costs_of(hardware), model_of(hardware)
    others = {name: st.sampled_from([n for n in costs if n != name]) for name in costs}
    now, active = 0, data.draw(st.sampled_from(list(costs)))
    staging.switch(active, now)
    for _ in range(data.draw(st.integers(1, 8))):
        rows = data.draw(st.integers(0, costs[active].kv_blocks))
        seconds = data.draw(st.sampled_from([0, 1, 5, 60]))
        following = data.draw(others[active] | st.none())
        staging.serving(following, now, now + seconds * SECOND, rows)
        now += seconds * SECOND
        active = data.draw(others[active])
        duration, record = staging.switch(active, now)
        assert duration <= costs[active].switch(costs[active].weight_bytes, 0)
        assert record.h2d_bytes + record.d2d_bytes == costs[active].weight_bytes
