from __future__ import annotations

import pytest

from alipes.instance.memory.staging import OnDevice, StagingLedger, SwitchPath
from alipes.instance.memory.staging_plan import Chunks, StagingArea, part_held

# Three places in each of two layers of 36 bytes; row 0 is below them all.
AREA = StagingArea(kv_blocks=6, row_bytes=(6, 6), chunk_bytes=10)


def write(ledger: StagingLedger, limit: int = 99) -> tuple[int, ...]:
    places = ledger.next(limit)
    ledger.written(places)
    return places


def chunks(ledger: StagingLedger, model: str) -> list[tuple[int, int]]:
    return sorted(ledger.held(model))


def test_places_are_the_highest_rows_of_every_layer_first() -> None:
    assert [place.offset for place in AREA.places] == [26, 62, 16, 52, 6, 42]
    assert [place.rows for place in AREA.places[::2]] == [range(4, 6), range(2, 5), range(1, 3)]
    assert [AREA.above(rows) for rows in range(7)] == [6, 6, 4, 2, 2, 0, 0]


def test_places_are_aligned_in_the_arena() -> None:
    area = StagingArea(kv_blocks=8, row_bytes=(6, 10), chunk_bytes=8, base=20, align=8)
    offsets = sorted(place.offset for place in area.places)
    assert offsets == [*range(24, 64, 8), *range(72, 144, 8)]
    assert [-place.rows.start for place in area.places] == sorted(
        -place.rows.start for place in area.places
    )


def test_the_last_chunk_is_shorter() -> None:
    assert Chunks(35, 10).count == 4
    assert [Chunks(35, 10).bytes_of(i) for i in range(4)] == [10, 10, 10, 5]


def test_weights_larger_than_the_area_are_staged_as_far_as_it_goes() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 95)
    while write(ledger, 4):
        pass
    staged = ledger.switch("b", 95)
    assert (staged.path, staged.d2d_bytes, staged.h2d_bytes) == (SwitchPath.PARTIAL, 60, 35)
    assert staged.clean == tuple((i, i) for i in range(6))
    assert (ledger.slack, ledger.done) == (0, False)


def test_rows_in_use_are_passed_over() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 60)
    ledger.occupied(2)
    assert ledger.next(1) == (0,)
    assert ledger.next(99) == (1, 2, 3)
    assert ledger.next(99) == ()
    assert ledger.busy_rows() == (range(4, 6), range(4, 6), range(2, 5), range(2, 5))
    ledger.occupied(1)
    assert ledger.next(99) == (4, 5)
    assert ledger.done


def test_full_coverage_switches_within_the_device() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 15)
    assert ledger.switch("b", 15).path is SwitchPath.H2D
    write(ledger, 1)
    assert ledger.coverage == 10 / 15
    assert ledger.switch("b", 15).path is SwitchPath.PARTIAL
    write(ledger)
    assert ledger.switch("b", 15).path is SwitchPath.D2D
    assert ledger.switch("c", 15).path is SwitchPath.H2D
    assert ledger.switch("c", 15).h2d_bytes == 15


def test_rows_in_use_spoil_what_is_there_until_they_are_given_back() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 60)
    assert write(ledger) == tuple(range(6))
    ledger.occupied(3)
    assert (ledger.clean_bytes, ledger.spoiled_bytes) == (20, 40)
    assert ledger.switch("b", 60).clean == ((0, 0), (1, 1))
    assert write(ledger) == ()
    ledger.occupied(2)
    assert write(ledger) == (2, 3)
    ledger.occupied(0)
    write(ledger)
    assert ledger.switch("b", 60).path is SwitchPath.D2D


def test_what_was_spoiled_is_staged_again_where_there_is_room() -> None:
    ledger = StagingLedger(AREA)
    ledger.keep([OnDevice("a", 20, {0: 90, 1: 100})])
    ledger.begin("b", 40)
    write(ledger)
    ledger.occupied(2)
    assert (ledger.coverage, ledger.held("a")) == (0.5, [(0, 0), (1, 1)])
    assert write(ledger, 1) == (1,)
    assert (ledger.coverage, ledger.held("a")) == (0.75, [(0, 0)])


def test_a_spoiled_place_is_not_written_again_before_its_write_has_ended() -> None:
    """Late bytes would land in what the second one wrote, or over a block."""
    ledger = StagingLedger(StagingArea(2, (6,), 10))
    ledger.begin("b", 10)
    first = ledger.next(1)
    ledger.occupied(2)
    ledger.occupied(0)
    assert ledger.next(1) == ()
    ledger.written(first)
    assert ledger.clean_bytes == 0
    assert ledger.next(1) == first
    ledger.written(first)
    assert ledger.clean_bytes == 10


def test_what_was_staged_of_another_model_is_kept_until_its_place_is_needed() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 20)
    write(ledger)
    ledger.begin("c", 60)
    assert (ledger.target, ledger.coverage) == ("c", 0)
    assert ledger.switch("b", 20).path is SwitchPath.D2D
    assert ledger.slack == 60
    assert write(ledger, 5) == (2, 3, 4, 5, 1)
    assert ledger.switch("b", 20).clean == ((0, 0),)
    ledger.begin("b", 20)
    assert ledger.coverage == 0.5
    assert write(ledger) == (5,)
    assert ledger.coverage == 1


def test_kept_chunks_take_the_highest_places_and_count_once_their_model_is_staged() -> None:
    ledger = StagingLedger(AREA)
    first = OnDevice("a", 30, {2: 200, 0: 210})
    second = OnDevice("b", 100, {chunk: 300 + chunk for chunk in range(10)})
    assert ledger.keep([first, second]) == {200: 0, 210: 1, 300: 2, 301: 3, 302: 4, 303: 5}
    assert (ledger.clean_bytes, ledger.slack) == (0, 60)
    ledger.begin("a", 30)
    assert ledger.clean_bytes == 20
    assert write(ledger) == (5,)
    assert chunks(ledger, "a") == [(0, 1), (1, 5), (2, 0)]
    assert chunks(ledger, "b") == [(0, 2), (1, 3), (2, 4)]
    ledger.occupied(3)
    assert chunks(ledger, "a") == [(0, 1), (2, 0)]
    assert chunks(ledger, "b") == []
    with pytest.raises(ValueError, match="a is being staged: no chunks can be kept"):
        ledger.keep([OnDevice("c", 10, {0: 90})])


def test_kept_chunks_stay_where_they_are_unless_higher_rows_have_room() -> None:
    ledger = StagingLedger(AREA)
    # The places begin at 26, 62, 16, 52, 6 and 42.
    assert ledger.keep([OnDevice("a", 30, {0: 16, 1: 62, 2: 6})]) == {6: 0}
    assert chunks(ledger, "a") == [(0, 2), (1, 1), (2, 0)]


def test_slack_is_what_unused_places_could_still_take() -> None:
    ledger = StagingLedger(AREA)
    assert ledger.slack == 60
    ledger.begin("b", 40)
    places = ledger.next(1)
    assert ledger.slack == 50
    ledger.written(places)
    assert ledger.slack == 50
    ledger.occupied(2)
    assert ledger.slack == 30
    ledger.occupied(5)
    assert ledger.slack == 0


def test_other_weights_of_the_same_name_are_another_model() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 20)
    write(ledger)
    assert ledger.switch("b", 20).path is SwitchPath.D2D
    assert ledger.switch("b", 30).path is SwitchPath.H2D
    ledger.begin("b", 30)
    assert (ledger.coverage, ledger.held("b")) == (0, [])
    assert write(ledger) == (0, 1, 2)


def test_misuse_changes_nothing() -> None:
    ledger = StagingLedger(AREA)
    ledger.begin("b", 40)
    with pytest.raises(ValueError, match="there are 6 rows, not 8"):
        ledger.occupied(8)
    with pytest.raises(ValueError, match="place 0 is not being written"):
        ledger.written((0,))
    with pytest.raises(ValueError, match="at least one chunk"):
        ledger.next(0)
    assert (ledger.slack, ledger.rows) == (60, 0)


def test_areas_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="chunks of 6 bytes do not lie 4 apart"):
        StagingArea(7, (6,), 6, 0, 4)
    with pytest.raises(ValueError, match="no such KV area"):
        StagingArea(7, (), 6)


def test_an_area_without_room_stages_nothing() -> None:
    ledger = StagingLedger(StagingArea(1, (6, 6), 10))
    ledger.begin("b", 40)
    assert ledger.next(5) == ()
    ledger.occupied(1)
    assert ledger.slack == 0
    assert ledger.switch("b", 40).path is SwitchPath.H2D


def test_the_part_of_other_weights_that_an_empty_area_has_places_for() -> None:
    area = StagingArea(kv_blocks=10, row_bytes=(4, 4), chunk_bytes=16)
    assert len(area.places) == 4
    assert part_held(area, []) == 1.0
    assert part_held(area, [33, 16]) == 1.0
    assert part_held(area, [65, 48]) == 0.5
    assert part_held(StagingArea(3, (4,), 16), [1]) == 0.0
