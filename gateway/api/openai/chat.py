"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.datastructures import Headers

from alipes.gateway.api.errors import OPENAI, ApiError, invalid
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation, Job, Update
from alipes.gateway.api.intake import Ask, job_of
from alipes.gateway.api.openai.answer import (
    DONE,
    Form,
    GenerationBody,
    answer,
    completion_id,
    event,
    usage_object,
)
from alipes.gateway.api.openai.logprobs import chat_logprobs
from alipes.gateway.api.openai.messages import hosted_of, messages_of, tools_of
from alipes.gateway.api.sampling import Positive, TopLogprobs
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import Collected
from alipes.gateway.api.wishes import (
    Mode,
    functions_of,
    json_answer,
    openai_choice,
    schema_field,
    wished,
)
from alipes.gateway.conversation.message import Conversation, goes_on
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Any]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


_decoder: Final = msgspec.json.Decoder(ChatBody)


async def chat_completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_decoder, service.body_limit, service.check_outline)
    ask = await exchange.apart(_ask, body, exchange.headers)
    job = await job_of(service, ask, exchange.record.tenant)
    form = Form("chatcmpl", "chat.completion", ChatStream, _choice)
    await answer(service, exchange, body, job, form)


def _ask(body: ChatBody, headers: Headers) -> Ask:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    choice = openai_choice(body.tool_choice, body.parallel_tool_calls)
    conversation = conversation_of(body, choice.mode is Mode.NONE)
    answer = json_answer(body.response_format, "response_format")
    field = schema_field(body.response_format, "response_format")
    return Ask(
        prompt=conversation,
        sampling=body,
        limit=body.max_completion_tokens or body.max_tokens,
        claim=body.claim(headers),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
        wished=wished(
            choice, functions_of(conversation.tools), answer, field, hosted=hosted_of(body.tools)
        ),
    )


def conversation_of(body: ChatBody, mute: bool) -> Conversation:
    """Raises ``TextError`` that names the field."""
    messages = messages_of(body.messages)
    again = body.add_generation_prompt is True
    if body.continue_final_message and not goes_on(messages):
        raise invalid("continue_final_message", "the last message is no text of the assistant's")
    return Conversation(
        messages,
        tools_of(body.tools),
        mute=mute,
        continues=goes_on(messages) and not again,
    )


class ChatStream:
    """``chat.completion.chunk`` events."""

    def __init__(self, created: int, job: Job, include_usage: bool) -> None:
        self._job = job
        self._include_usage = include_usage
        self._head = {
            "id": completion_id("chatcmpl"),
            "object": "chat.completion.chunk",
            "created": created,
            "model": job.text.name,
        }

    def opening(self, generation: Generation) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join([self._chunk(i, dict(role)) for i in range(self._job.choices)])

    def silence(self) -> bytes:
        return self._chunk(0, {})

    def update(self, update: Update) -> bytes:
        deltas = [shown for delta in update.deltas if (shown := _delta(delta))]
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
    match delta:
        case TextDelta():
            return {"content": delta.text}
        case ThinkingDelta():
            return {"reasoning_content": delta.text}
        case ToolStart():
            function = {"name": delta.name, "arguments": ""}
            call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolArguments():
            return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
        case ToolEnd():
            return {}


def _choice(job: Job, choice: Collected) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thoughts:
        message["reasoning_content"] = choice.thoughts
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
