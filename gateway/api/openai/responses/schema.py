"""The body of ``POST /v1/responses`` and the items that a conversation consists of."""

from __future__ import annotations

from typing import Any

import msgspec

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.openai.answer import GenerationBody
from alipes.gateway.api.sampling import Positive


class Part(msgspec.Struct, omit_defaults=True):
    """A piece of content of any type; only text can be shown to a model here."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, omit_defaults=True):
    """One item of a conversation, of any type: which fields count depends on ``type``. A message
    may leave its type out. Fields that no prompt needs are dropped."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Tool(msgspec.Struct, omit_defaults=True):
    """A tool of any type. A ``namespace`` groups functions, as agents do for MCP servers."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[Tool] | None = None


class TextFormat(msgspec.Struct):
    type: str


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class ResponsesBody(GenerationBody, kw_only=True):
    """Unknown fields (service_tier, client_metadata, ...) are ignored, and so are wishes that
    only hint (reasoning, text.verbosity) or that nothing here makes true (truncation)."""

    input: str | list[Item]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Positive | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None


def check_supported(body: ResponsesBody) -> None:
    """Raises a 400 that names a field whose wish cannot be fulfilled."""
    if body.background:
        raise invalid("background", "is not supported: ask for a stream", "unsupported")
    if body.conversation is not None:
        raise invalid("conversation", "is not supported: use previous_response_id", "unsupported")
    if body.prompt is not None:
        raise invalid("prompt", "stored prompts are not supported: use input", "unsupported")
    if body.n not in (None, 1):
        raise invalid("n", "a response is one answer", "unsupported")
    if body.tool_choice not in (None, "none", "auto"):
        raise invalid("tool_choice", "only 'auto' and 'none' are supported", "unsupported")
    if body.text and body.text.format and body.text.format.type != "text":
        raise invalid("text.format.type", "only 'text' is supported", "unsupported")
    if "message.output_text.logprobs" in (body.include or ()):
        raise invalid(
            "include", "logprobs are not supported here: use /v1/chat/completions", "unsupported"
        )
