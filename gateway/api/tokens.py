"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.intake import Raw, prompts_of
from alipes.gateway.api.openai.messages import messages_of, tools_of
from alipes.gateway.api.sampling import TokenId, check_ids
from alipes.gateway.api.service import Service
from alipes.gateway.conversation.message import Conversation


class TokenizeBody(msgspec.Struct):
    """Either ``prompt`` (raw text) or ``messages`` (through the chat template)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: str | None = None


_tokenize: Final = msgspec.json.Decoder(TokenizeBody)
_detokenize: Final = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_tokenize, service.body_limit, service.check_outline)
    text = service.only_text(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "send either prompt or messages")
    prompt: Conversation | Raw = Raw(body.prompt or "")
    if body.messages is not None:
        prompt = Conversation(
            await exchange.apart(messages_of, body.messages), tools_of(body.tools)
        )
    (read,) = (await prompts_of(text, prompt, exchange.record.tenant)).tokens
    tokens = read.tolist()
    longest = service.context(text)
    await exchange.reply({"tokens": tokens, "count": len(tokens), "max_model_len": longest})


async def detokenize(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_detokenize, service.body_limit)
    text = service.only_text(body.model)
    check_ids("tokens", body.tokens, text)
    decoder = text.decoder()
    await exchange.reply({"prompt": decoder.push(body.tokens) + decoder.finish()})
