"""Run folders: what is read back is what was written last."""

from __future__ import annotations

from pathlib import Path

from alipes.replay.records import CallRecord
from alipes.replay.runs import Run, RunInfo, SwitchRecord, read_run, write_run

CALL = CallRecord("s", "s.0", "m", 0, 0.0, 0.0, 0.0, 1.0, 5)


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = Run(
        str(tmp_path),
        RunInfo("scenario", "a", "simulated", bound={"s": 0.5}),
        (CALL,),
        (SwitchRecord("i0", 0.0, "m", "h2d", 1.0),),
    )
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run


def test_nothing_of_an_earlier_run_in_the_folder_is_left(tmp_path: Path) -> None:
    info = RunInfo("scenario", "a", "simulated")
    switch = SwitchRecord("i0", 0.0, "m", "h2d", 1.0)
    write_run(tmp_path, Run(str(tmp_path), info, (CALL, CALL), (switch,)))
    later = Run(str(tmp_path), info, (CALL,))
    write_run(tmp_path, later)
    assert read_run(tmp_path) == later
