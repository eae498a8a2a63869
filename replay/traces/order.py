"""The order in which a session's calls can happen, where nothing is known of how long they take."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from alipes.replay.traces.form import Session, Wait

Place = tuple[int, int]
"""Number of a branch in its session, index of a call in that branch."""


def dependencies(session: Session) -> TopologicalSorter[Place]:
    """Every call of a session with those that end before it begins."""
    numbers = {branch.name: number for number, branch in enumerate(session.branches)}
    order: TopologicalSorter[Place] = TopologicalSorter()
    for number, branch in enumerate(session.branches):
        for index in range(len(branch.calls)):
            order.add((number, index), *waits_for(session, numbers, number, index))
    return order


def steps(session: Session) -> dict[Place, int]:
    """When each call runs if every call takes one step and gaps none: a call right after what it
    waits for, the main branch's first at step 0. Raises ValueError if a call waits for ever."""
    numbers = {branch.name: number for number, branch in enumerate(session.branches)}
    at: dict[Place, int] = {}
    try:
        for place in dependencies(session).static_order():
            before = waits_for(session, numbers, *place)
            at[place] = max((at[one] + 1 for one in before), default=0)
    except CycleError:
        raise ValueError(f"session {session.id}: its calls wait for each other for ever") from None
    return at


def waits_for(session: Session, numbers: dict[str, int], number: int, index: int) -> list[Place]:
    """The calls that end before a call can begin; ``numbers`` are those of the branches."""
    branch = session.branches[number]
    before = []
    if index:
        before.append((number, index - 1))
    elif branch.parent:
        before.append((numbers[branch.parent], branch.spawned_by))
    if branch.calls[index].wait is Wait.BRANCH:
        joined = (numbers[name] for name in branch.calls[index].joins)
        before += [(other, len(session.branches[other].calls) - 1) for other in joined]
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
