"""What every endpoint needs, and the shell around each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from starlette.types import Receive, Scope, Send

from alipes.gateway.api.errors import (
    OPENAI,
    ApiError,
    Dialect,
    ErrorClass,
    from_text,
    invalid,
    too_long,
    unknown_model,
)
from alipes.gateway.api.exchange import ClientGoneError, Exchange, Outline
from alipes.gateway.api.keys import Keyring
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.config import Cluster, Limits
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.telemetry.record import write_line
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.model import ModelText
from alipes.gateway.text.names import ModelNames

log = logging.getLogger("alipes.gateway")
CLIENT_CLOSED = 499


def responses_bounds(limits: Limits) -> tuple[int, int, int]:
    """Of the store of responses: how many, how many bytes, and for how many nanoseconds."""
    return limits.responses, limits.responses_bytes, int(limits.session_idle * 1e9)


@dataclass(slots=True)
class Service:
    """The parts that endpoints share. ``stopping`` turns new calls away; ``open_calls`` are
    those whose response is not complete."""

    cluster: Cluster
    texts: Mapping[str, ModelText]
    dispatcher: Dispatcher
    metrics: Metrics
    keys: Keyring
    responses: ResponseStore
    stopping: bool = False
    open_calls: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    names: ModelNames = field(init=False)

    def __post_init__(self) -> None:
        self.names = ModelNames(self.texts, self.cluster.aliases)

    def configure(self, cluster: Cluster, now: int) -> None:
        """Keys, names and limits of ``cluster``, for calls that come from ``now`` (ns) on."""
        self.cluster = cluster
        self.names = ModelNames(self.texts, cluster.aliases)
        self.keys.configure(cluster.gateway.api_keys)
        self.responses.configure(*responses_bounds(cluster.gateway.limits), now)

    @property
    def body_limit(self) -> int:
        return self.cluster.gateway.limits.body_bytes

    @staticmethod
    def now_seconds() -> int:
        """Calendar time, for fields that show it; never for measuring."""
        return int(time.time())

    def text(self, name: str) -> ModelText:
        """The text side of the model that the name stands for; raises a 404 that lists what is
        served."""
        model = self.names.find(name)
        if model is None:
            raise unknown_model(name, sorted(self.names.shown))
        return self.texts[model]

    def check_outline(self, outline: Outline) -> None:
        """Raises the error of a prompt that is too long for one of more messages than the model's
        context has tokens: each makes one at least."""
        name = self.names.find(outline.model) if isinstance(outline.model, str) else None
        if name is None:
            return
        most = self.texts[name].context
        for place, listed in (("messages", outline.messages), ("input", outline.input)):
            if isinstance(listed, list) and len(listed) > most:
                raise too_long(place, len(listed), most)

    def context(self, text: ModelText, prompt: int = 0) -> int:
        """Tokens of the longest call: the model's context, or what its instances can hold. A
        ``prompt`` of so many tokens may be too long only for those that have connected so far."""
        held = self.dispatcher.book.router.longest_call(text.name, prompt)
        return text.context if held is None else min(text.context, held)

    def only_text(self, name: str | None) -> ModelText:
        """As ``text``; the name may be left out where one model is served."""
        if name is None:
            if len(self.texts) != 1:
                raise invalid("model", "is required")
            return next(iter(self.texts.values()))
        return self.text(name)


class Access(Enum):
    """Who may use an endpoint: everybody, a known key, an operator's key, or a known key with a
    call to spare."""

    OPEN = auto()
    KEY = auto()
    ADMIN = auto()
    CALL = auto()


Handler = Callable[[Service, Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application around a handler: identity, errors, and for calls the record.

    A call holds one of its key's calls while it runs, is logged and counted, and is refused
    once the gateway is stopping.
    """

    def __init__(
        self,
        service: Service,
        handler: Handler,
        route: str,
        dialect: Dialect = OPENAI,
        access: Access = Access.KEY,
    ) -> None:
        self._service = service
        self._handler = handler
        self._route = route
        self._dialect = dialect
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = self._service.dispatcher.now()
        exchange = Exchange(scope, receive, send, self._dialect, self._route, now)
        is_call = self._access is Access.CALL
        self._service.open_calls += is_call
        try:
            await self._answer(exchange)
        except ApiError as error:
            await _fail(exchange, error)
        except TextError as error:
            await _fail(exchange, from_text(error))
        except ClientGoneError:
            exchange.record.disconnected = True
            await _abandon(exchange)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await _fail(
                exchange,
                ApiError(500, ErrorClass.INTERNAL, f"internal error in {exchange.request_id}"),
            )
        finally:
            self._service.open_calls -= is_call
            if is_call:
                self._conclude(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        if self._access is Access.OPEN:
            await self._handler(self._service, exchange)
            return
        keys = self._service.keys
        key = keys.identify(exchange.headers)
        exchange.record.tenant = key.tenant if key is not None else ""
        if self._access is Access.ADMIN and key is not None and not key.admin:
            raise _no_operator()
        if self._access is not Access.CALL:
            await self._handler(self._service, exchange)
            return
        if self._service.stopping:
            raise _stopping()
        with keys.slot(key):
            await self._handler(self._service, exchange)

    def _conclude(self, exchange: Exchange) -> None:
        record = exchange.record
        record.finished = self._service.dispatcher.now()
        self._service.metrics.call(record)
        write_line(record)


def _no_operator() -> ApiError:
    message = "this API key is no operator's: it needs `admin: true` in the cluster file"
    return ApiError(403, ErrorClass.PERMISSION, message, code="permission_denied")


def _stopping() -> ApiError:
    return ApiError(
        503,
        ErrorClass.UNAVAILABLE,
        "the gateway is stopping",
        code="shutting_down",
        retry_after=5.0,
    )


async def _fail(exchange: Exchange, error: ApiError) -> None:
    """Answer with the error, or just end a response that has begun."""
    if not exchange.started:
        await exchange.fail(error)
    elif not exchange.complete:
        exchange.record.error = error.message
        await exchange.close_stream()


async def _abandon(exchange: Exchange) -> None:
    """Nobody reads it, but the server wants a complete response."""
    if not exchange.started:
        await exchange.respond(CLIENT_CLOSED, b"")
    elif not exchange.complete:
        await exchange.close_stream()
