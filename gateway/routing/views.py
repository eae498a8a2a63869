"""What may be shown of a session."""

from __future__ import annotations

from typing import Final

import msgspec

from alipes.gateway.routing.branches import Branch, Session
from alipes.gateway.routing.identity import Source

SECOND: Final = 1_000_000_000


class BranchView(msgspec.Struct, frozen=True):
    """Times are seconds since; ``instance`` served its last call, of whose prompt
    ``cached_tokens`` were not computed, and which left ``prefix_tokens`` to be reused."""

    id: bytes
    branch: str
    parent: str
    model: str
    calls: int
    in_flight: int
    instance: str
    cached_tokens: int
    prefix_tokens: int
    idle: float


class SessionView(msgspec.Struct, frozen=True):
    id: str
    source: Source
    calls: int
    in_flight: int
    idle: float
    branches: tuple[BranchView, ...]


def view_of(session: Session, now: int) -> SessionView:
    views = tuple(_view(branch, now) for branch in session.all())
    calls = sum(view.calls for view in views)
    idle = (now - session.used) / SECOND
    return SessionView(session.id, session.source, calls, session.in_flight, idle, views)


def _view(branch: Branch, now: int) -> BranchView:
    return BranchView(
        id=branch.id,
        branch=branch.name,
        parent=branch.parent,
        model=branch.model,
        calls=branch.calls,
        in_flight=int(branch.busy),
        instance=branch.instance,
        cached_tokens=branch.cached_tokens,
        prefix_tokens=branch.prefix_tokens,
        idle=(now - branch.used) / SECOND,
    )
