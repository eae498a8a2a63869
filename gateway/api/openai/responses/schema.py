"""The body of ``POST /v1/responses`` and the items that a conversation consists of."""

from __future__ import annotations

from typing import Any

import msgspec

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.openai.answer import GenerationBody
from alipes.gateway.api.sampling import Positive


class Item(msgspec.Struct, omit_defaults=True):
    """One item of a conversation, of any type: which fields count depends on ``type``. A message
    may leave its type out. Fields that no prompt needs are dropped."""

    type: str | None = None
    id: Any = None
    role: Any = None
    content: Any = None
    call_id: Any = None
    name: Any = None
    namespace: Any = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    output: Any = None
    summary: Any = None
    encrypted_content: Any = None
    tools: Any = None


class Tool(msgspec.Struct, omit_defaults=True):
    """A tool of any type. A ``namespace`` groups functions, as agents do for MCP servers."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[Tool] | None = None
    format: Any = None


class TextConfig(msgspec.Struct):
    format: dict[str, Any] | None = None


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

    @property
    def format(self) -> dict[str, Any] | None:
        """That of the text, None where it is not told."""
        return self.text.format if self.text else None


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
    if "message.output_text.logprobs" in (body.include or ()):
        raise invalid(
            "include", "logprobs are not supported here: use /v1/chat/completions", "unsupported"
        )
