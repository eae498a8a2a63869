"""What of a session may be sent next, as its calls end; without times.

A call waits for the one before it in its branch, a branch's first for the call that spawned it,
and a joining one for the branches it names too.
"""

from __future__ import annotations

from collections import defaultdict

from alipes.replay.traces.form import Session, Wait
from alipes.replay.traces.order import Place


class SessionError(ValueError):
    """A session cannot be replayed as recorded; one line says which and why."""


class Progress:
    """A session under way. Each call that ends costs as much as it lets go."""

    def __init__(self, session: Session) -> None:
        """Raises ``SessionError`` for branches without calls, without a name of their own, or
        spawned by a call that does not exist."""
        self._branches = session.branches
        self._numbers = _numbers(session)
        self._left = [len(branch.calls) for branch in session.branches]
        self._children: defaultdict[Place, list[int]] = defaultdict(list)
        self._joins: dict[Place, int] = {}
        self._joiners: defaultdict[int, list[Place]] = defaultdict(list)
        self.left = session.calls
        for number, branch in enumerate(session.branches[1:], start=1):
            parent = self._numbers.get(branch.parent)
            if parent is None or not 0 <= branch.spawned_by < len(self._branches[parent].calls):
                raise SessionError(
                    f"session {session.id}: branch {branch.name} is spawned by call"
                    f" {branch.spawned_by} of {branch.parent!r}, which there is not"
                )
            self._children[parent, branch.spawned_by].append(number)

    def end(self, branch: int, index: int) -> list[Place]:
        """A call is over; the calls that waited for nothing else now, in a fixed order."""
        self.left -= 1
        self._left[branch] -= 1
        followers = [(child, 0) for child in self._children.pop((branch, index), ())]
        if index + 1 < len(self._branches[branch].calls):
            followers.append((branch, index + 1))
        return [place for place in followers if self._free(place)] + self._joined(branch)

    def _free(self, place: Place) -> bool:
        """Whether the call joins no branch that is still under way; else it waits for them."""
        call = self._branches[place[0]].calls[place[1]]
        names = dict.fromkeys(call.joins) if call.wait is Wait.BRANCH else {}
        running = [number for name in names if self._left[number := self._numbers[name]]]
        for number in running:
            self._joiners[number].append(place)
        if running:
            self._joins[place] = len(running)
        return not running

    def _joined(self, branch: int) -> list[Place]:
        """The calls for which this branch was the last to wait for."""
        if self._left[branch]:
            return []
        free = []
        for place in self._joiners.pop(branch, ()):
            self._joins[place] -= 1
            if not self._joins[place]:
                del self._joins[place]
                free.append(place)
        return free


def check(session: Session) -> None:
    """Raises ``SessionError`` unless every call of the session has its turn."""
    progress = Progress(session)
    ready = [(0, 0)]
    while ready:
        ready.extend(progress.end(*ready.pop()))
    if progress.left:
        raise SessionError(
            f"session {session.id}: {progress.left} calls wait for each other's branches"
        )


def _numbers(session: Session) -> dict[str, int]:
    numbers = {branch.name: number for number, branch in enumerate(session.branches)}
    if len(numbers) < len(session.branches):
        raise SessionError(f"session {session.id}: two branches have one name")
    if not session.branches or not all(branch.calls for branch in session.branches):
        raise SessionError(f"session {session.id}: a branch has no calls")
    for branch in session.branches:
        for index, call in enumerate(branch.calls):
            unknown = [name for name in call.joins if name not in numbers]
            if unknown and call.wait is Wait.BRANCH:
                raise SessionError(
                    f"session {session.id}: call {index} of branch {branch.name} waits for"
                    f" {unknown[0]!r}, which is no branch of it"
                )
    return numbers
