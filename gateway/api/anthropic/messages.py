"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from alipes.gateway.api.anthropic.conversation import conversation_of
from alipes.gateway.api.anthropic.schema import CountBody, MessagesBody
from alipes.gateway.api.anthropic.stream import (
    SIGNATURE,
    MessageStream,
    message_id,
    stop_fields,
    usage_object,
)
from alipes.gateway.api.claims import claim_of
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation
from alipes.gateway.api.intake import Ask, job_of, prompts_of
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import Collected, collect, placement_headers, stream

_messages: Final = msgspec.json.Decoder(MessagesBody)
_count: Final = msgspec.json.Decoder(CountBody)


async def messages(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_messages, service.body_limit, service.check_outline)
    conversation = await exchange.apart(conversation_of, body)
    ask = Ask(
        prompt=conversation,
        sampling=body.sampling,
        limit=body.max_tokens,
        claim=claim_of(exchange.headers, metadata_user_id=body.user_id),
        wished=body.wished(conversation.tools),
    )
    job = await job_of(service, ask, exchange.record.tenant)
    generation = Generation(job, service.dispatcher, exchange.record)
    if body.stream:
        exchange.record.stream = True
        form = MessageStream(job.text.name)
        await stream(exchange, generation, form, service.cluster.gateway.limits.keep_alive)
        return
    (choice,) = await collect(exchange, generation)
    await exchange.reply(
        {
            "id": message_id(),
            "type": "message",
            "role": "assistant",
            "model": job.text.name,
            "content": _content(choice),
            **stop_fields(choice.finish),
            "usage": usage_object(generation.usage),
        },
        placement_headers(generation),
    )


async def count_tokens(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_count, service.body_limit, service.check_outline)
    text = service.text(body.model)
    conversation = await exchange.apart(conversation_of, body)
    prompts = await prompts_of(text, conversation, exchange.record.tenant)
    await exchange.reply({"input_tokens": sum(map(len, prompts.tokens))})


def _content(choice: Collected) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if choice.thoughts:
        blocks.append({"type": "thinking", "thinking": choice.thoughts, "signature": SIGNATURE})
    if choice.text:
        blocks.append({"type": "text", "text": choice.text})
    for _, call in sorted(choice.tools.items()):
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**block, "input": json.loads(call.arguments or "{}")})
    return blocks
