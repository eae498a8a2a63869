"""Times read together against the same ones read by the standard library, one at a time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.traces.dates import Stamps
from alipes.replay.traces.model import TraceError

TIMES = st.datetimes(datetime(2024, 2, 27), datetime(2024, 3, 2))
FORMS = st.sampled_from(["seconds", "milliseconds", "microseconds", "auto"])
ZONES = st.sampled_from(["", "Z", "+05:30"])


@given(st.lists(TIMES, min_size=1, max_size=9), FORMS, ZONES, st.integers(1, 9))
def test_times_are_those_of_the_standard_library(
    times: list[datetime], form: str, zone: str, together: int
) -> None:
    cells = [time.isoformat(" ", form) + zone for time in times]
    stamps = Stamps(Path("t.csv"), "TIMESTAMP")
    lines = list(range(2, 2 + len(cells)))
    for at in range(0, len(cells), together):
        stamps.add_all(lines[at : at + together], cells[at : at + together])
    starts, order = stamps.starts(lines)
    kept = [datetime.fromisoformat(cell.removesuffix(zone) if zone else cell) for cell in cells]
    since = [round((time - min(kept)).total_seconds() * 1e6) * 1000 for time in kept]
    places = list(range(len(cells))) if order is None else order.tolist()
    assert starts.tolist() == [since[place] for place in places] == sorted(since)


@given(
    st.lists(TIMES, min_size=1, max_size=9),
    st.integers(0, 8),
    st.integers(0, 22),
    st.sampled_from("0159:-+.TZ x"),
)
def test_a_changed_letter_is_read_or_named_alike(
    times: list[datetime], which: int, place: int, letter: str
) -> None:
    cells = [time.isoformat(" ", "milliseconds") for time in times]
    which %= len(cells)
    cells[which] = cells[which][:place] + letter + cells[which][place + 1 :]
    lines = list(range(2, 2 + len(cells)))
    outcomes = []
    for size in (len(cells), 1):
        stamps = Stamps(Path("t.csv"), "TIMESTAMP")
        try:
            for at in range(0, len(cells), size):
                stamps.add_all(lines[at : at + size], cells[at : at + size])
            outcomes.append(str(stamps.starts(lines)[0].tolist()))
        except TraceError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_nothing_is_no_time() -> None:
    with pytest.raises(TraceError, match="line 2: TIMESTAMP: '' is not a time"):
        Stamps(Path("t.csv"), "TIMESTAMP").add_all([2], [""])
