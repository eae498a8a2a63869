"""A backend as the SGLang router expects one, which answers at a set pace: ``PORT STEP``.

Tokens of the model "paced" take ``STEP`` seconds each, as the fake engine's do, and those of any
other no time, so that what a router adds can be told by difference.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import uvloop

TOKENS_DEFAULT = 16


class Worker(asyncio.Protocol):
    """One connection; requests are answered in order, chunk by chunk."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).decode("latin-1")
            length = _length(head)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            task = asyncio.get_running_loop().create_task(self._answer(head, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, head: str, body: bytes) -> None:
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0]
        if method not in ("GET", "POST") or path == "*":  # a probe for HTTP/2
            self._transport.close()
            return
        if not body:
            self._reply(_about(path))
            return
        wanted = json.loads(body)
        tokens = int(wanted.get("max_tokens", TOKENS_DEFAULT))
        step = self._step if wanted["model"] == "paced" else 0.0
        if wanted.get("stream"):
            await self._stream(wanted["model"], tokens, step)
            return
        if step:
            await asyncio.sleep(step * tokens)
        text = " word" * tokens
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        self._reply(_object(wanted["model"], "chat.completion", choice) | {"usage": usage})

    async def _stream(self, model: str, tokens: int, step: float) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        due = asyncio.get_running_loop().time()
        for i in range(tokens):
            due += step
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            finish = "length" if i + 1 == tokens else None
            choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": finish}
            self._chunk(json.dumps(_object(model, "chat.completion.chunk", choice)))
        self._chunk("[DONE]")
        self._transport.write(b"0\r\n\r\n")

    def _chunk(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _reply(self, value: dict[str, Any]) -> None:
        raw = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + raw)


def _length(head: str) -> int:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0


def _object(model: str, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "object": kind, "created": 1, "model": model, "choices": [choice]}


def _about(path: str) -> dict[str, Any]:
    if path.startswith("/v1/models"):
        return {"object": "list", "data": [{"id": "paced", "object": "model", "owned_by": "x"}]}
    if "model_info" in path:
        return {"model_path": "paced", "tokenizer_path": "paced", "is_generation": True}
    if "server_info" in path:
        names = {"model_path": "paced", "served_model_name": "paced"}
        return {**names, "tp_size": 1, "dp_size": 1, "version": "0.5.0"}
    return {"status": "ok"}


async def main() -> None:
    port, step = int(sys.argv[1]), float(sys.argv[2])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Worker(step), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
