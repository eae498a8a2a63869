"""``GET /v1/sessions/{id}``: what is known of one of the caller's sessions."""

from __future__ import annotations

from typing import Any

from alipes.gateway.api.claims import client_id
from alipes.gateway.api.errors import ApiError, ErrorClass
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.service import Service
from alipes.gateway.routing.views import SECOND, BranchView

_SHOWN = 64


async def get_session(service: Service, exchange: Exchange) -> None:
    """The ``id`` is the one that calls carry, however long, or that ``x-alipes-session`` tells. A
    session of another tenant does not exist."""
    name = client_id(exchange.path_params["session"])
    dispatcher = service.dispatcher
    view = dispatcher.book.sessions.view(exchange.record.tenant, name, dispatcher.now())
    if view is None:
        message = f"session: {name[:_SHOWN]!r} is not known (any more)"
        raise ApiError(404, ErrorClass.NOT_FOUND, message, "session", "session_not_found")
    await exchange.reply(
        {
            "id": view.id,
            "object": "session",
            "source": view.source,
            "calls": view.calls,
            "in_flight": view.in_flight,
            "idle_seconds": view.idle,
            "branches": [_branch(service, branch) for branch in view.branches],
        }
    )


def _branch(service: Service, branch: BranchView) -> dict[str, Any]:
    return {
        "id": branch.id.hex(),
        "branch": branch.branch,
        "parent": branch.parent,
        "model": branch.model,
        "calls": branch.calls,
        "in_flight": branch.in_flight,
        "instance": branch.instance,
        "cached_tokens": branch.cached_tokens,
        "prefix_tokens": branch.prefix_tokens,
        "idle_seconds": branch.idle,
        "lease": _lease(service, branch.id),
    }


def _lease(service: Service, branch: bytes) -> dict[str, Any] | None:
    """The place that is held for the branch's next call."""
    now = service.dispatcher.now()
    lease = service.dispatcher.book.router.lease_of(branch, now)
    if lease is None:
        return None
    return {"instance": lease.instance, "seconds_left": (lease.expires - now) / SECOND}
