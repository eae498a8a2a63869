"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.datastructures import Headers

from alipes.gateway.api.errors import OPENAI, ApiError, invalid
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation, Job, Update
from alipes.gateway.api.intake import Ask, Conversation, job_of
from alipes.gateway.api.openai.answer import (
    COMMENT,
    DONE,
    Form,
    GenerationBody,
    answer,
    completion_id,
    event,
    usage_object,
)
from alipes.gateway.api.openai.logprobs import chat_logprobs
from alipes.gateway.api.openai.tools import function_tools
from alipes.gateway.api.sampling import Positive, TopLogprobs
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import Collected
from alipes.gateway.text.deltas import Delta, TextDelta, ToolStart


class ResponseFormat(msgspec.Struct):
    type: str


class ChatBody(GenerationBody, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None


_decoder: Final = msgspec.json.Decoder(ChatBody)


async def chat_completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_decoder, service.body_limit)
    job = await job_of(service, _ask(body, exchange.headers), exchange.record.tenant)
    form = Form("chatcmpl", "chat.completion", ChatStream, _choice)
    await answer(service, exchange, body, job, form)


def _ask(body: ChatBody, headers: Headers) -> Ask:
    _check_supported(body)
    tools = None if body.tool_choice == "none" else function_tools(body.tools)
    return Ask(
        prompt=Conversation(body.messages, tools),
        sampling=body,
        limit=body.max_completion_tokens or body.max_tokens,
        claim=body.claim(headers),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
    )


def _check_supported(body: ChatBody) -> None:
    if body.tool_choice not in (None, "none", "auto"):
        raise invalid("tool_choice", "only 'auto' and 'none' are supported", "unsupported")
    if body.response_format is not None and body.response_format.type != "text":
        raise invalid("response_format.type", "only 'text' is supported", "unsupported")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")


class ChatStream:
    """``chat.completion.chunk`` events."""

    keep_alive = COMMENT

    def __init__(self, request_id: str, created: int, job: Job, include_usage: bool) -> None:
        self._job = job
        self._include_usage = include_usage
        self._head = {
            "id": completion_id("chatcmpl", request_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": job.text.name,
        }

    def opening(self, generation: Generation) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join([self._chunk(i, dict(role)) for i in range(self._job.choices)])

    def update(self, update: Update) -> bytes:
        deltas = [_delta(delta) for delta in update.deltas]
        logprobs = chat_logprobs(self._job.text, update.drawn) if update.drawn else None
        if not deltas and logprobs:
            deltas = [{}]
        out = []
        for delta in deltas:
            out.append(self._chunk(update.index, delta, logprobs))
            logprobs = None
        if update.finish is not None:
            out.append(self._chunk(update.index, {}, None, update.finish.reason))
        return b"".join(out)

    def closing(self, generation: Generation) -> bytes:
        if not self._include_usage:
            return DONE
        usage = usage_object(generation.usage)
        return event({**self._head, "choices": [], "usage": usage}) + DONE

    def error(self, error: ApiError, request_id: str) -> bytes:
        return event(OPENAI.body(error, request_id))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return event(chunk)


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ToolStart):
        function = {"name": delta.name, "arguments": ""}
        call: dict[str, Any] = {
            "index": delta.index,
            "id": delta.id,
            "type": "function",
            "function": function,
        }
        return {"tool_calls": [call]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def _choice(job: Job, choice: Collected) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tools:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for _, call in sorted(choice.tools.items())
        ]
    wanted = job.sampling.top_logprobs >= 0
    return {
        "index": choice.index,
        "message": message,
        "logprobs": chat_logprobs(job.text, choice.drawn) if wanted else None,
        "finish_reason": choice.reason,
    }
