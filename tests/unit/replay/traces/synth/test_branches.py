"""Branches built call by call."""

from __future__ import annotations

from pathlib import Path

from alipes.replay.traces.check import check
from alipes.replay.traces.form import Session, Trace, Wait
from alipes.replay.traces.synth.branches import BranchBuilder


def test_what_is_appended_goes_on_from_all_before_it() -> None:
    builder = BranchBuilder()
    for new, output, gap in ((10, 3, 0.5), (4, 1, 2.0), (1, 2, 0.0)):
        builder.append(new, output, gap)
    branch = builder.branch()
    check(Trace("made", (Session("s", (branch,)),)), Path("made"))
    assert [(call.prompt, call.kept) for call in branch.calls] == [(10, 0), (17, 13), (19, 18)]
    assert [call.gap for call in branch.calls] == [0.5, 2.0, 0.0]
    assert [call.wait for call in branch.calls] == [Wait.START, Wait.TOOL, Wait.TOOL]
    assert len({span.stream for call in branch.calls for span in call.added}) == 3
