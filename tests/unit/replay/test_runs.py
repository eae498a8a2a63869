"""Run folders: what is read back is what was written last."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from alipes.replay.records import CallRecord
from alipes.replay.runs import (
    MemoryRecord,
    RoundRecord,
    Run,
    RunInfo,
    SwitchRecord,
    read_run,
    write_run,
)

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


def test_what_is_measured_began_after_the_warm_up() -> None:
    info = RunInfo("scenario", "a", "simulated")
    times = (0.0, 1.0, 2.0)
    run = Run(
        "folder",
        info,
        (CALL, replace(CALL, warmup=True, finished=0.5), replace(CALL, warmup=True)),
        tuple(SwitchRecord("i0", at, "m", "h2d", 1.0) for at in times),
        tuple(RoundRecord("i0", index, at, 1.0) for index, at in enumerate(times)),
        tuple(MemoryRecord("i0", at + 0.5, int(at), 0, 0, 0, 9) for at in times),
    )
    measured = run.measured()
    assert measured.calls == (CALL,)
    assert measured.switches == run.switches[1:]
    assert measured.rounds == run.rounds[1:]
    assert [(one.at, one.weights) for one in measured.memory] == [(1.0, 0), (1.5, 1), (2.5, 2)]
    assert measured.measured() == measured
