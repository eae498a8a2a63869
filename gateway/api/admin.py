"""What operators and load balancers ask: models, health, metrics, instances."""

from __future__ import annotations

from typing import Any

import msgspec

from alipes.gateway.api.errors import ApiError, ErrorClass
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.service import Service


async def list_models(service: Service, exchange: Exchange) -> None:
    data = [_model(service, name, model) for name, model in service.names.shown.items()]
    page = {"first_id": None, "last_id": None, "has_more": False}
    await exchange.reply({"object": "list", "data": data, **page})


async def get_model(service: Service, exchange: Exchange) -> None:
    name = exchange.path_params["model"]
    await exchange.reply(_model(service, name, service.text(name).name))


def _model(service: Service, name: str, model: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "alipes",
        "max_model_len": service.context(service.texts[model]),
    }


async def unserved(service: Service, exchange: Exchange) -> None:
    """Endpoints that clients know from elsewhere."""
    raise ApiError(
        404,
        ErrorClass.NOT_FOUND,
        f"{exchange.record.route} is not served here: the models generate text",
        code="unsupported_endpoint",
    )


async def health(service: Service, exchange: Exchange) -> None:
    """The process answers; nothing more."""
    await exchange.reply({"status": "ok"})


async def ready(service: Service, exchange: Exchange) -> None:
    """200 when every model has an instance that takes calls; 503 otherwise, saying which have
    none, and from the first moment of a shutdown."""
    models = service.dispatcher.book.router.status(service.dispatcher.now()).models
    missing = sorted(name for name, able in models.items() if not able)
    if service.stopping or missing:
        body = {"status": "stopping" if service.stopping else "waiting", "missing": missing}
        await exchange.respond(503, msgspec.json.encode(body), headers=[(b"retry-after", b"1")])
        return
    await exchange.reply({"status": "ready", "missing": []})


async def metrics(service: Service, exchange: Exchange) -> None:
    text, dispatcher = service.metrics, service.dispatcher
    dispatcher.forget_sessions()
    sessions = dispatcher.book.sessions
    status = dispatcher.book.router.status(dispatcher.now())
    text.live_calls(len(dispatcher.book))
    text.routing(status, len(sessions), sessions.branches)
    await exchange.respond(200, text.render(), text.content_type.encode())


async def instances(service: Service, exchange: Exchange) -> None:
    """Every instance's state, and the last placements with all their candidates' terms."""
    dispatcher = service.dispatcher
    dispatcher.forget_sessions()
    status = dispatcher.book.router.status(dispatcher.now())
    states = []
    for known in status.instances:
        hello = dispatcher.hello(known.name)
        states.append(
            {
                "name": known.name,
                "connected": hello is not None,
                "status": known,
                "hello": hello and _named(hello),
                "snapshot": _named(dispatcher.snapshot(known.name)),
            }
        )
    await exchange.reply(
        {
            "ready": status.ready and not service.stopping,
            "queued": status.queued,
            "late": status.late,
            "sessions": len(dispatcher.book.sessions),
            "live_calls": len(dispatcher.book),
            "placements": status.counts,
            "leases": status.leases,
            "instances": states,
            "decisions": [_named(placement) for placement in dispatcher.decisions],
        }
    )


async def drain(service: Service, exchange: Exchange) -> None:
    name = exchange.path_params["name"]
    if name not in service.cluster.instances:
        raise ApiError(404, ErrorClass.NOT_FOUND, f"instance: {name[:200]!r} is not configured")
    if not service.dispatcher.drain(name):
        raise ApiError(409, ErrorClass.INVALID, f"instance: {name} is not connected", "instance")
    await exchange.reply({"instance": name, "draining": True})


def _named(value: Any) -> Any:
    """Structs as objects with named fields, whatever form they have on the wire; bytes as hex."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    return value
