"""The event sequence of an Anthropic message stream."""

from __future__ import annotations

import uuid
from typing import Any, Final

import msgspec

from alipes.gateway.api.errors import ANTHROPIC, ApiError
from alipes.gateway.api.generation import Finish, Generation, Update, Usage
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)

encode: Final = msgspec.json.encode
SIGNATURE: Final = "YWxpcGVz"
"""Clients keep thoughts only with one; it says nothing."""
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message_id() -> str:
    return f"msg_{uuid.uuid4().hex}"


def event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))


def usage_object(usage: Usage) -> dict[str, int]:
    """``input_tokens`` are those that no cache held, as the dialect counts them."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def stop_fields(finish: Finish | None) -> dict[str, str | None]:
    if finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    if finish.stop is not None and finish.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop}
    return {"stop_reason": _STOP_REASONS[finish.reason], "stop_sequence": None}


class MessageStream:
    """message_start, ping, blocks (start, deltas, stop), message_delta, message_stop. One block
    is open at a time, of the type ``_open``. The last usage says what the first could not know
    yet."""

    def __init__(self, model: str) -> None:
        self._id = message_id()
        self._model = model
        self._block = -1
        self._open = ""
        self._finish: Finish | None = None

    def opening(self, generation: Generation) -> bytes:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            **stop_fields(None),
            "usage": usage_object(generation.usage),
        }
        return event("message_start", message=message) + event("ping")

    def silence(self) -> bytes:
        return event("ping")

    def update(self, update: Update) -> bytes:
        self._finish = update.finish or self._finish
        return b"".join([self._delta(delta) for delta in update.deltas])

    def closing(self, generation: Generation) -> bytes:
        return b"".join(
            (
                self._close(),
                event(
                    "message_delta",
                    delta=stop_fields(self._finish),
                    usage=usage_object(generation.usage),
                ),
                event("message_stop"),
            )
        )

    def error(self, error: ApiError, request_id: str) -> bytes:
        return b"event: error\ndata: %b\n\n" % encode(ANTHROPIC.body(error, request_id))

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta():
                start = self._start({"type": "text", "text": ""})
                return start + self._piece({"type": "text_delta", "text": delta.text})
            case ThinkingDelta():
                start = self._start({"type": "thinking", "thinking": "", "signature": ""})
                return start + self._piece({"type": "thinking_delta", "thinking": delta.text})
            case ToolStart():
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                return self._start(block)
            case ToolArguments():
                return self._piece({"type": "input_json_delta", "partial_json": delta.text})
            case ToolEnd():
                return self._close()

    def _start(self, block: dict[str, Any]) -> bytes:
        """Begin a block, unless it goes on with the one that is open."""
        if self._open == block["type"]:
            return b""
        closed = self._close()
        self._block += 1
        self._open = block["type"]
        return closed + event("content_block_start", index=self._block, content_block=block)

    def _piece(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", index=self._block, delta=delta)

    def _close(self) -> bytes:
        kind, self._open = self._open, ""
        if not kind:
            return b""
        signed = b""
        if kind == "thinking":
            signed = self._piece({"type": "signature_delta", "signature": SIGNATURE})
        return signed + event("content_block_stop", index=self._block)
