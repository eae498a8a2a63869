"""What a reader must know before believing a section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from alipes.replay.reports.groups import Group, loads_of
from alipes.replay.reports.measures import NAMES

FEW: Final = 5


def warnings_of(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(
        line
        for part in (_incomplete, _failures, _few, _sets, _lengths, _seeds, _unknown)
        for line in part(groups)
    )


def _incomplete(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        cut = [run for run in group.runs if not run.info.complete]
        if cut:
            whole = len(group.whole)
            yield (
                f"{group.label}: {_runs(len(cut), len(group.runs))} interrupted; it counts the"
                f" calls that had ended and {_sessions(whole)} that are known to be complete."
            )


def _failures(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.failed:
            errors = [c.error for run in group.runs for c in run.counted if c.error]
            calls = "call" if group.failed == 1 else "calls"
            yield f"{group.label}: {group.failed} {calls} failed, the first with: {errors[0]}."


def _few(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        count = len({session.session for session in group.whole})
        if count == 0:
            yield f"{group.label}: no session is complete, so it has no completion times."
        elif count < FEW:
            yield f"{group.label}: only {_sessions(count)}; percentiles and intervals say little."


def _sets(groups: Sequence[Group]) -> Iterator[str]:
    """Configurations that did not complete the same sessions are not the same experiment."""
    for load in loads_of(groups):
        there = [group for group in groups if group.load == load]
        sets = [{session.session for session in group.sessions} for group in there]
        if any(found != sets[0] for found in sets):
            told = ", ".join(f"{g.label} {len(s)}" for g, s in zip(there, sets, strict=True))
            shared = len(set.intersection(*sets))
            yield (
                f"not all configurations served the same sessions ({told}; {shared} in common):"
                " only paired figures compare like with like."
            )


def _lengths(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        other = sum(
            call.completion_tokens not in (None, call.expected_tokens) for call in group.calls
        )
        if other:
            yield f"{group.label}: {other} calls gave another number of tokens than recorded."


def _seeds(groups: Sequence[Group]) -> Iterator[str]:
    for load in loads_of(groups):
        there = [group for group in groups if group.load == load]
        seeds = {tuple(sorted({run.info.seed for run in group.runs})) for group in there}
        if len(seeds) > 1:
            told = "; ".join(
                f"{g.label} {', '.join(map(str, sorted({r.info.seed for r in g.runs})))}"
                for g in there
            )
            yield (
                f"configurations ran with different seeds ({told}): paired figures use those in"
                " common, and all of them where there are none."
            )


def _unknown(groups: Sequence[Group]) -> Iterator[str]:
    names = sorted({n for g in groups for run in g.runs for n in run.info.published} - set(NAMES))
    if names:
        yield f"published numbers without a figure of ours: {', '.join(names)}."


def _runs(some: int, of: int) -> str:
    return "the run was" if of == 1 else f"{some} of {of} runs were"


def _sessions(count: int) -> str:
    return f"{count} session" if count == 1 else f"{count} sessions"
