"""One HTTP request and its response over bare ASGI."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from alipes.gateway.api.errors import ApiError, Dialect, ErrorClass, invalid
from alipes.gateway.api.packed import unpacked
from alipes.gateway.telemetry.record import CallRecord

T = TypeVar("T")
P = ParamSpec("P")
HeaderList = list[tuple[bytes, bytes]]

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream; charset=utf-8"
_INLINE: Final = 1 << 20  # bytes of a body that is read without another thread
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="read")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>.*?)`$")
_ESCAPE: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash, a surrogate pair, or half of one."""
_HALF_BYTES: Final = 6
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]+)`")


class Outline(msgspec.Struct):
    """What can be told of a long body before its values are read."""

    model: Any = None
    messages: list[msgspec.Raw] | None = None
    input: str | list[msgspec.Raw] | None = None


_outline: Final = msgspec.json.Decoder(Outline)
Check = Callable[[Outline], None]
"""Raises an ``ApiError`` for a body that is not worth reading; called in any thread."""


class Exchange:
    """Reads the body once, within a limit, and answers once: whole or streamed."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        dialect: Dialect,
        route: str,
        now: int,
    ) -> None:
        self.headers = Headers(scope=scope)
        self.path_params: dict[str, Any] = scope.get("path_params", {})
        self.dialect = dialect
        self.request_id = request_id_of(self.headers)
        self.record = CallRecord(self.request_id, route, now)
        self.started = False
        self.complete = False
        self._receive = receive
        self._send = send
        self._consumed = not _has_body(self.headers)
        self._long = False

    # --- in ---

    async def body(self, limit: int) -> bytes:
        """The whole body, unpacked. Raises a 413 above ``limit`` bytes, packed or not, without
        reading or unpacking on, and a 415 for a packing that is not known."""
        body = await self._received(limit)
        coding = self.headers.get("content-encoding", "")
        if coding:
            # However short it is: it may become as long as the limit.
            body = await _in_thread(unpacked, body, coding, limit)
            if len(body) > limit:
                raise _too_large(limit)
        return body

    async def _received(self, limit: int) -> bytes:
        declared = self.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body", False):
                self._consumed = True
                return b"".join(chunks)

    async def json(
        self, decoder: msgspec.json.Decoder[T], limit: int, check: Check | None = None
    ) -> T:
        """The body as a typed struct. Raises a 400 that names the field, and what ``check`` does
        for a long one."""
        body = await self.body(limit)
        self._long = len(body) > _INLINE
        return await self.apart(_checked, body, decoder, check if self._long else None)

    async def apart(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` makes of the body, in a thread where the body is long: the loop is for all
        calls."""
        if not self._long:
            return work(*args, **kwargs)
        return await _in_thread(work, *args, **kwargs)

    async def disconnected(self) -> None:
        """Return when the client leaves (or the response is complete). Only after ``body``."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    # --- out ---

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Sequence[Any] = ()
    ) -> None:
        start: HeaderList = [(b"content-length", str(len(body)).encode()), *headers]
        if not self._consumed:
            start.append((b"connection", b"close"))
        await self._start(status, content_type, start)
        self.complete = True
        await self._send({"type": "http.response.body", "body": body})

    async def reply(self, value: object, headers: Sequence[Any] = ()) -> None:
        await self.respond(200, msgspec.json.encode(value), headers=headers)

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, as long as nothing has been sent."""
        self.record.error = error.message
        body = msgspec.json.encode(self.dialect.body(error, self.request_id))
        await self.respond(error.status, body, headers=error.headers)

    async def open_stream(self, headers: Sequence[Any]) -> None:
        fixed: HeaderList = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._start(200, EVENTS, [*fixed, *headers])

    async def write(self, data: bytes) -> None:
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close_stream(self) -> None:
        self.complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, content_type: bytes, headers: HeaderList) -> None:
        self.started = True
        self.record.status = status
        message: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"x-request-id", self.request_id.encode()),
                *headers,
            ],
        }
        await self._send(message)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class ClientGoneError(Exception):
    """The client left before its request was read."""


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, partial(work, *args, **kwargs))


def _checked(body: bytes, decoder: msgspec.json.Decoder[T], check: Check | None) -> T:
    if check is not None:
        try:
            outline = _outline.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            outline = Outline()  # what is wrong is told below
        check(outline)
    return decode(body, decoder)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return _decoded(body, decoder)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(
            400, ErrorClass.INVALID, f"body: not valid JSON: {error}", "body", "invalid_json"
        ) from None
    except RecursionError:
        raise invalid("body", "nested too deeply", "invalid_json") from None


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Half a surrogate pair, which agents send where they cut a text in the middle of a character,
    is read as U+FFFD."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = _without_halves(body)
        if mended == body:
            raise
        return decoder.decode(mended)


def _without_halves(body: bytes) -> bytes:
    try:
        text = body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return body
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return _ESCAPE.sub(lambda match: _mended(match[0]), whole)


def _mended(escape: bytes) -> bytes:
    return rb"\ufffd" if len(escape) == _HALF_BYTES else escape


def _wrong_field(text: str) -> ApiError:
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    problem = text[: place.start()] if place else text
    missing = _MISSING.search(problem)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        problem = "is required"
    return invalid(path or "body", problem.replace("`", "").replace("Expected", "expected"))


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        ErrorClass.TOO_LARGE,
        f"body: larger than the limit of {limit} bytes",
        "body",
        "request_too_large",
    )


def request_id_of(headers: Headers) -> str:
    """The client's ``x-request-id`` where it is short and plain, else a new one."""
    sent = headers.get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else f"req_{uuid.uuid4().hex}"
