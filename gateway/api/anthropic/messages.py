"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec

from alipes.gateway.api.anthropic.schema import CountBody, MessagesBody, template_input
from alipes.gateway.api.anthropic.stream import MessageStream, stop_fields, usage_object
from alipes.gateway.api.claims import claim_of
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import SEED_MASK, Generation, Job
from alipes.gateway.api.sampling import check_room, forced_bytes
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import Collected, collect, placement_headers, stream
from alipes.gateway.routing.identity import Claim
from alipes.instance.contract import Sampling

_messages: Final = msgspec.json.Decoder(MessagesBody)
_count: Final = msgspec.json.Decoder(CountBody)


async def messages(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_messages, service.body_limit)
    claim = claim_of(exchange.headers, metadata_user_id=body.user_id)
    job = await _job(service, body, exchange.record.tenant, claim)
    generation = Generation(job, service.dispatcher, exchange.record)
    if body.stream:
        exchange.record.stream = True
        form = MessageStream(exchange.request_id, job.text.name)
        await stream(exchange, generation, form, service.cluster.gateway.limits.keep_alive)
        return
    (choice,) = await collect(exchange, generation)
    await exchange.reply(
        {
            "id": f"msg_{exchange.request_id.removeprefix('req_')}",
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
    body = await exchange.json(_count, service.body_limit)
    shown, tools = template_input(body)
    prompt = await service.text(body.model).chat(shown, tools, exchange.record.tenant)
    await exchange.reply({"input_tokens": len(prompt.tokens)})


async def _job(service: Service, body: MessagesBody, tenant: str, claim: Claim) -> Job:
    text = service.text(body.model)
    shown, tools = template_input(body)
    allowed = service.cluster.gateway.allow_forced_tokens
    forced = forced_bytes(body.forced_token_ids, allowed, text)
    prompt = await text.chat(shown, tools, tenant)
    context = service.context(text, len(prompt.tokens))
    check_room("messages", len(prompt.tokens), text, context)
    return Job(
        text=text,
        prompts=(prompt.tokens,),
        context=context,
        max_tokens=body.max_tokens,
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=body.top_p or 1.0,
            top_k=max(0, body.top_k or 0),
            seed=secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK,
        ),
        stops=tuple(body.stop_sequences or ()),
        ignore_eos=bool(body.ignore_eos),
        forced=forced,
        tools=tools,
        claim=claim,
        stems=(prompt.stem,),
        messages=shown,
    )


def _content(choice: Collected) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if choice.text:
        blocks.append({"type": "text", "text": choice.text})
    for _, call in sorted(choice.tools.items()):
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**block, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """An object whatever the model wrote: a call cut off by ``max_tokens`` keeps its text."""
    try:
        parsed = msgspec.json.decode(arguments or b"{}")
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
