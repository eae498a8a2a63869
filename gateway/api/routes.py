"""The ASGI application: which path is answered by what."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from alipes.gateway.api import admin, tokens
from alipes.gateway.api.anthropic.messages import count_tokens, messages
from alipes.gateway.api.errors import ANTHROPIC, OPENAI, ApiError, Dialect, ErrorClass
from alipes.gateway.api.exchange import request_id_of
from alipes.gateway.api.keys import Keyring
from alipes.gateway.api.openai.chat import chat_completions
from alipes.gateway.api.openai.completions import completions
from alipes.gateway.api.openai.responses.endpoint import (
    create_response,
    delete_response,
    get_response,
)
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.api.service import Access, Endpoint, Handler, Service, responses_bounds
from alipes.gateway.api.sessions import get_session
from alipes.gateway.api.web import Web
from alipes.gateway.config import Cluster
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.text.model import ModelText

_RESPONSE: Final = "/v1/responses/{response_id}"
UNSERVED: Final = (
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/moderations",
    "/v1/rerank",
)


def build_app(
    cluster: Cluster,
    texts: Mapping[str, ModelText],
    dispatcher: Dispatcher,
    metrics: Metrics,
) -> Starlette:
    """The application; its ``state.service`` can be told to stop."""
    kept = ResponseStore(*responses_bounds(cluster.gateway.limits))
    keys = Keyring(cluster.gateway.api_keys)
    service = Service(cluster, texts, dispatcher, metrics, keys, kept)
    app = Starlette(
        routes=_routes(service), exception_handlers={404: _no_such_path, 405: _wrong_method}
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def build_web(app: Starlette) -> Web:
    """The application as it is served."""
    return Web(app, lambda: app.state.service.cluster.gateway.cors_origins)


def _routes(service: Service) -> list[Route]:
    def call(path: str, handler: Handler, dialect: Dialect = OPENAI) -> Route:
        return Route(path, Endpoint(service, handler, path, dialect, Access.CALL), methods=["POST"])

    def post(
        path: str, handler: Handler, dialect: Dialect = OPENAI, access: Access = Access.KEY
    ) -> Route:
        return Route(path, Endpoint(service, handler, path, dialect, access), methods=["POST"])

    def get(path: str, handler: Handler, access: Access = Access.KEY) -> Route:
        return Route(path, Endpoint(service, handler, path, OPENAI, access), methods=["GET"])

    def delete(path: str, handler: Handler) -> Route:
        endpoint = Endpoint(service, handler, path, OPENAI, Access.KEY)
        return Route(path, endpoint, methods=["DELETE"])

    return [
        call("/v1/chat/completions", chat_completions),
        call("/v1/completions", completions),
        call("/v1/responses", create_response),
        get(_RESPONSE, get_response),
        delete(_RESPONSE, delete_response),
        call("/v1/messages", messages, ANTHROPIC),
        post("/v1/messages/count_tokens", count_tokens, ANTHROPIC),
        get("/v1/models", admin.list_models),
        get("/v1/models/{model:path}", admin.get_model),
        get("/v1/sessions/{session:path}", get_session),
        post("/tokenize", tokens.tokenize),
        post("/detokenize", tokens.detokenize),
        *(post(path, admin.unserved) for path in UNSERVED),
        get("/", admin.health, Access.OPEN),
        get("/health", admin.health, Access.OPEN),
        get("/ready", admin.ready, Access.OPEN),
        get("/metrics", admin.metrics, Access.OPEN),
        get("/admin/instances", admin.instances, Access.ADMIN),
        post("/admin/instances/{name}/drain", admin.drain, access=Access.ADMIN),
    ]


async def _no_such_path(request: Request, _: Exception) -> Response:
    return _refusal(request, 404, f"no such path: {request.url.path[:200]}")


async def _wrong_method(request: Request, _: Exception) -> Response:
    routes = (route for route in request.app.routes if isinstance(route, Route))
    able = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    allowed = ", ".join(sorted({method for route in able for method in route.methods or ()}))
    message = f"{request.method} is not allowed on {request.url.path[:200]}, only {allowed}"
    return _refusal(request, 405, message, {"allow": allowed})


def _refusal(
    request: Request, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    dialect = ANTHROPIC if request.url.path.startswith("/v1/messages") else OPENAI
    kind = ErrorClass.NOT_FOUND if status == 404 else ErrorClass.INVALID
    error = ApiError(status, kind, message)
    request_id = request_id_of(request.headers)
    sent = {"x-request-id": request_id, **headers}
    return JSONResponse(dialect.body(error, request_id), status, sent)
