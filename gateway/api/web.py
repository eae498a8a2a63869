"""What browsers and careless addresses need, before any endpoint is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALLOWED: Final = [
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-max-age", b"600"),
]
_EXPOSED: Final = b"x-request-id, x-alipes-session, x-alipes-instance, x-alipes-reason, retry-after"


class Web:
    """Around the application: a path means the same with a slash at its end, and is never
    redirected; a browser's question whether it may send is answered for the ``origins`` of the
    file (``*`` for all), without a key, as browsers send none with it."""

    def __init__(self, app: ASGIApp, origins: Callable[[], Collection[str]]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path.endswith("/") and path != "/":
            path = path.rstrip("/") or "/"
            scope = {**scope, "path": path, "raw_path": path.encode("utf-8", "replace")}
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if scope["method"] == "OPTIONS" and origin:
            await _preflight(send, headers, self._allows(origin))
            return
        if origin and self._allows(origin):
            await self._app(scope, receive, _with_origin(send, origin))
            return
        await self._app(scope, receive, send)

    def _allows(self, origin: str) -> bool:
        origins = self._origins()
        return "*" in origins or origin in origins


async def _preflight(send: Send, headers: Headers, allowed: bool) -> None:
    sent = [(b"vary", b"origin")]
    if allowed:
        wanted = headers.get("access-control-request-headers", "*")
        sent += [
            (b"access-control-allow-origin", headers["origin"].encode("latin-1")),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            *_ALLOWED,
        ]
    await send({"type": "http.response.start", "status": 204, "headers": sent})
    await send({"type": "http.response.body", "body": b""})


def _with_origin(send: Send, origin: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"origin"),
            ]
        await send(message)

    return sending
