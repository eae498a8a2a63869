"""The order in which a session's calls can happen, where nothing is known of how long they take."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from alipes.replay.traces.form import Session, Wait

Place = tuple[int, int]  # a branch's number in its session, and a call's in its branch


def steps(session: Session) -> dict[Place, int]:
    """When each call runs if every call takes one step and gaps none: a call right after what it
    waits for, the main branch's first at step 0. Raises ValueError if a call waits for ever."""
    numbers = {branch.name: i for i, branch in enumerate(session.branches)}
    before = {
        (number, index): waits_for(session, numbers, number, index)
        for number, branch in enumerate(session.branches)
        for index in range(len(branch.calls))
    }
    at: dict[Place, int] = {}
    try:
        for place in TopologicalSorter(before).static_order():
            at[place] = max((at[one] + 1 for one in before[place]), default=0)
    except CycleError:
        raise ValueError(f"session {session.id}: its calls wait for each other for ever") from None
    return at


def waits_for(session: Session, numbers: dict[str, int], number: int, index: int) -> set[Place]:
    """The calls that end before a call can begin; ``numbers`` are those of the branches."""
    branch = session.branches[number]
    before = set()
    if index:
        before.add((number, index - 1))
    elif branch.parent:
        before.add((numbers[branch.parent], branch.spawned_by))
    if branch.calls[index].wait is Wait.BRANCH:
        for name in branch.calls[index].joins:
            before.add((numbers[name], len(session.branches[numbers[name]].calls) - 1))
    return before


def causal_order(session: Session) -> list[Place]:
    """All calls, each after those it waits for."""
    at = steps(session)
    return sorted(at, key=lambda place: (at[place], place))


def active_branches(session: Session) -> tuple[int, int, int]:
    """(most at once, sum of the steps for which branches were active, steps of the session). A
    branch is active from its first call until its last has ended, waiting or not."""
    at = steps(session)
    spans = [(at[i, 0], at[i, len(b.calls) - 1] + 1) for i, b in enumerate(session.branches)]
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    active = most = 0
    for _, change in changes:
        active += change
        most = max(most, active)
    return most, sum(end - begin for begin, end in spans), max(end for _, end in spans)
