"""Forty streams of the official clients, over the three dialects, and what each of them says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai

STREAMS = 40
TOKENS = 60
STOP_ID = 2
CALLS = (
    'See. <tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"x": 22}}\n</tool_call>'
)
LOOK: dict[str, Any] = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
Take = Callable[["Clients", dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Stream:
    """One request: ``take`` sends ``fields`` in its dialect and follows the stream to its end."""

    take: Take
    fields: dict[str, Any]


@dataclass
class Clients:
    """``heard`` counts the characters that came of all streams together."""

    oai: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic
    heard: int = 0

    @classmethod
    def of(cls, url: str) -> Clients:
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}
        return cls(
            openai.AsyncOpenAI(base_url=f"{url}/v1", **options),
            anthropic.AsyncAnthropic(base_url=url, **options),
        )

    async def close(self) -> None:
        await self.oai.close()
        await self.claude.close()


@dataclass
class _Said:
    """What a stream has said so far, by choice or part."""

    clients: Clients
    texts: dict[Any, str] = field(default_factory=dict)
    ends: list[Any] = field(default_factory=list)
    logprobs: list[str] = field(default_factory=list)
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens."""

    def add(self, key: Any, text: str | None) -> None:
        self.texts[key] = self.texts.get(key, "") + (text or "")
        self.clients.heard += len(text or "")

    def outcome(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "ends": sorted(self.ends, key=str),
            "logprobs": self.logprobs,
            "usage": self.usage,
        }


async def take_chat(clients: Clients, fields: dict[str, Any]) -> dict[str, Any]:
    said = _Said(clients)
    stream = await clients.oai.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        if chunk.usage is not None:
            said.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            said.add(choice.index, choice.delta.content)
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                said.add((choice.index, call.index), call.function.name)
                said.add((choice.index, call.index), call.function.arguments)
            if choice.logprobs is not None:
                said.logprobs += [one.token for one in choice.logprobs.content or []]
            if choice.finish_reason:
                said.ends.append((choice.index, choice.finish_reason))
    return said.outcome()


async def take_messages(clients: Clients, fields: dict[str, Any]) -> dict[str, Any]:
    said = _Said(clients)
    async with clients.claude.messages.stream(**fields) as stream:
        async for event in stream:
            if event.type == "text":
                clients.heard += len(event.text)
        final = await stream.get_final_message()
    for number, block in enumerate(final.content):
        said.texts[number] = block.text if block.type == "text" else str(block.input)  # type: ignore[union-attr]
    said.ends.append(final.stop_reason)
    sent = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    said.usage = (sent, final.usage.output_tokens)
    return said.outcome()


async def take_responses(clients: Clients, fields: dict[str, Any]) -> dict[str, Any]:
    said = _Said(clients)
    stream = await clients.oai.responses.create(**fields, stream=True)
    async for event in stream:
        if event.type in ("response.completed", "response.incomplete"):
            response = event.response
            assert response.usage is not None
            said.usage = (response.usage.input_tokens, response.usage.output_tokens)
            said.ends.append(response.status)
        elif event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            said.add(event.output_index, event.delta)
        assert event.type not in ("error", "response.failed"), event
    return said.outcome()


def streams(models: list[str], url: str) -> list[Stream]:
    """Greedy and seeded ones, penalties, stop strings, logprobs, ``n`` = 2, tool calls."""
    kinds = itertools.cycle((_chat, _messages, _responses))
    forced = {model: _forced(url, model) for model in models}
    numbered = zip(range(STREAMS), kinds, itertools.cycle(models), strict=False)
    return [kind(number, model, forced[model]) for number, kind, model in numbered]


def _forced(url: str, model: str) -> list[int]:
    """Ids of a reply with two tool calls, the stop id at its end."""
    answer = httpx.post(f"{url}/tokenize", json={"model": model, "prompt": CALLS})
    return [*answer.json()["tokens"], STOP_ID]


def _turns(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {number}: " + "why is that so? " * number}]


def _chat(number: int, model: str, forced: list[int]) -> Stream:
    variants: tuple[dict[str, Any], ...] = (
        {"temperature": 0, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0.9, "top_p": 0.9, "n": 2},
        {"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.3},
        {
            "tools": [{"type": "function", "function": LOOK}],
            "extra_body": {"forced_token_ids": forced},
        },
        {"temperature": 0.7, "stop": ["zz", "q!"]},
    )
    fields = {"max_tokens": TOKENS, **variants[number // 3 % len(variants)]}
    fields |= {"model": model, "messages": _turns(number), "seed": number}
    return Stream(take_chat, fields)


def _messages(number: int, model: str, forced: list[int]) -> Stream:
    tool = {"name": "look", "input_schema": LOOK["parameters"]}
    variants: tuple[dict[str, Any], ...] = (
        {"extra_body": {"temperature": 0}},
        {"extra_body": {"temperature": 0.8, "top_k": 20, "seed": number}},
        {"tools": [tool], "extra_body": {"forced_token_ids": forced}},
        {"stop_sequences": ["zz", "q!"], "extra_body": {"temperature": 0}},
    )
    fields = {"max_tokens": TOKENS, **variants[number // 3 % len(variants)]}
    return Stream(take_messages, fields | {"model": model, "messages": _turns(number)})


def _responses(number: int, model: str, forced: list[int]) -> Stream:
    tool = {"type": "function", "strict": False, **LOOK}
    variants: tuple[dict[str, Any], ...] = (
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.9, "extra_body": {"seed": number}},
        {"tools": [tool], "extra_body": {"forced_token_ids": forced}},
    )
    fields = {"max_output_tokens": TOKENS, **variants[number // 3 % len(variants)]}
    return Stream(take_responses, fields | {"model": model, "input": _turns(number)})


async def take_all(clients: Clients, asked: list[Stream]) -> list[dict[str, Any]]:
    """All at once; raises what the first client that fails has raised."""
    return await asyncio.gather(*(one.take(clients, one.fields) for one in asked))
