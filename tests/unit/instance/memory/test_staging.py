from __future__ import annotations

import pytest

from alipes.instance.memory.staging import StagingLedger, SwitchPath
from alipes.instance.memory.staging_plan import StagingArea, StagingPlan

# Three bands of two rows in each of two layers; row 0 is below them.
AREA = StagingArea(kv_blocks=7, layers=2, row_bytes=6, chunk_bytes=10)


def write(ledger: StagingLedger, limit: int = 99) -> range:
    chunks = ledger.next(limit)
    ledger.written(chunks)
    return chunks


def test_chunks_take_the_highest_rows_of_every_layer_first() -> None:
    plan = StagingPlan(AREA, 35)
    assert (AREA.rows_per_chunk, AREA.bands, AREA.lowest) == (2, 3, 1)
    assert (plan.chunks, plan.placed) == (4, 4)
    assert [plan.rows(i) for i in range(4)] == [range(5, 7), range(5, 7), range(3, 5), range(3, 5)]
    assert [plan.layer(i) for i in range(4)] == [0, 1, 0, 1]
    assert [plan.offset(i) for i in range(4)] == [30, 72, 18, 60]
    assert [plan.size(i) for i in range(4)] == [10, 10, 10, 5]
    assert plan.nbytes(range(1, 4)) == 25


def test_weights_larger_than_the_area_are_placed_as_far_as_it_goes() -> None:
    plan = StagingPlan(AREA, 95)
    assert (plan.chunks, plan.placed) == (10, 6)
    ledger = StagingLedger(AREA)
    ledger.begin("b", 95)
    while write(ledger):
        pass
    staged = ledger.switch("b", 95)
    assert (staged.path, staged.d2d_bytes, staged.h2d_bytes) == (SwitchPath.PARTIAL, 60, 35)
    assert staged.clean == (range(0, 6),)
    assert ledger.slack == 0


def test_a_run_ends_where_rows_are_in_use() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 60)
    ledger.allocated(3, 4)
    assert ledger.next(1) == range(0, 1)
    assert ledger.next(99) == range(1, 2)
    assert ledger.next(99) == range(4, 6)
    assert ledger.next(99) == range(0)
    assert ledger.busy_rows() == (range(5, 7), range(1, 3))
    ledger.released(3, 4)
    assert ledger.next(99) == range(2, 4)


def test_full_coverage_switches_within_the_device() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 15)
    assert ledger.switch("b", 15).path is SwitchPath.H2D
    write(ledger, 1)
    assert ledger.coverage == 10 / 15
    assert ledger.switch("b", 15).path is SwitchPath.PARTIAL
    write(ledger)
    assert ledger.switch("b", 15).path is SwitchPath.D2D
    assert ledger.switch("c", 15) == ledger.switch("c", 15)
    assert ledger.switch("c", 15).path is SwitchPath.H2D
    assert ledger.switch("c", 15).h2d_bytes == 15


def test_an_allocated_row_spoils_its_band_until_it_is_released() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 40)
    assert write(ledger) == range(0, 4)
    ledger.allocated(0, 4)
    assert (ledger.clean_bytes, ledger.spoiled_bytes) == (20, 20)
    assert ledger.switch("b", 40).clean == (range(0, 2),)
    assert write(ledger) == range(0)
    ledger.released(3, 4)
    assert write(ledger) == range(2, 4)
    assert ledger.switch("b", 40).path is SwitchPath.D2D


def test_a_spoiled_write_is_not_begun_again_before_it_has_ended() -> None:
    """Its late bytes would land in what the second one wrote, or over a block."""
    ledger = StagingLedger(AREA)
    ledger.begin("b", 20)
    first = ledger.next(1)
    second = ledger.next(1)
    ledger.allocated(5, 6)
    ledger.released(5, 6)
    assert ledger.next(1) == range(0)
    ledger.written(first)
    assert ledger.clean_bytes == 0
    assert ledger.next(1) == first
    ledger.written(second)
    ledger.written(first)
    assert ledger.clean_bytes == 10
    assert write(ledger) == second


def test_staging_another_model_forgets_the_first() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 20)
    write(ledger)
    ledger.begin("c", 20)
    assert (ledger.target, ledger.coverage) == ("c", 0)
    assert ledger.switch("b", 20).path is SwitchPath.H2D
    assert write(ledger) == range(0, 2)


def test_slack_is_what_unused_bands_could_still_take() -> None:
    ledger = StagingLedger(AREA)
    assert ledger.slack == 60
    ledger.begin("b", 40)
    chunks = ledger.next(1)
    assert ledger.slack == 50
    ledger.written(chunks)
    assert ledger.slack == 50
    ledger.allocated(0, 2)
    assert ledger.slack == 30
    ledger.allocated(6, 7)
    assert ledger.slack == 20


def test_rows_of_two_bands_count_in_both() -> None:
    ledger = StagingLedger(AREA)
    ledger.allocated(2, 4)
    assert ledger.slack == 20
    ledger.released(3, 4)
    assert ledger.slack == 40
    ledger.released(2, 3)
    assert ledger.slack == 60


def test_nothing_is_staged_after_a_cancel() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 40)
    chunks = ledger.next(1)
    ledger.cancel()
    assert ledger.writing
    ledger.allocated(0, 7)
    ledger.released(0, 7)
    ledger.written(chunks)
    assert not ledger.writing
    assert ledger.next(99) == range(0)
    assert (ledger.coverage, ledger.slack) == (0, 60)


def test_other_weights_of_the_same_name_are_another_model() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 20)
    write(ledger)
    assert ledger.switch("b", 20).path is SwitchPath.D2D
    assert ledger.switch("b", 30).path is SwitchPath.H2D


def test_misuse_changes_nothing() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 40)
    ledger.allocated(0, 3)
    with pytest.raises(ValueError, match="rows 1 to 3 are in use already"):
        ledger.allocated(0, 7)
    with pytest.raises(ValueError, match="rows 3 to 5 are not all in use"):
        ledger.released(1, 5)
    with pytest.raises(ValueError, match="rows 6 to 8 are not in 0 to 7"):
        ledger.allocated(6, 8)
    with pytest.raises(ValueError, match="chunks 0 to 1 are not being written"):
        ledger.written(range(0, 1))
    with pytest.raises(ValueError, match="at least one chunk"):
        ledger.next(0)
    assert ledger.slack == 40
    ledger.released(0, 3)
    assert ledger.slack == 60


def test_a_chunk_is_at_least_a_row() -> None:
    with pytest.raises(ValueError, match="a chunk of 5 bytes is smaller than a row of 6"):
        StagingArea(7, 2, 6, 5)
    with pytest.raises(ValueError, match="no such KV area"):
        StagingArea(7, 0, 6, 6)


def test_an_area_without_room_stages_nothing() -> None:
    ledger = StagingLedger(StagingArea(1, 2, 6, 10))
    ledger.begin("b", 40)
    assert ledger.next(5) == range(0)
    ledger.allocated(0, 1)
    assert ledger.slack == 0
    assert ledger.switch("b", 40).path is SwitchPath.H2D
