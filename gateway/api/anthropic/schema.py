"""The Anthropic Messages body, and what the chat template makes of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.intake import Conversation
from alipes.gateway.api.sampling import (
    Fraction,
    Positive,
    SamplingFields,
    StopStrings,
    TokenId,
    TopK,
    TopP,
)


class Block(msgspec.Struct):
    """A content block of any type; which fields count depends on ``type``."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[Block]


class ToolDefinition(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    type: str


class CountBody(msgspec.Struct, kw_only=True):
    """What a prompt consists of; all that ``count_tokens`` needs. Unknown fields (thinking,
    cache_control, betas) are ignored."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[Block] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None


class MessagesBody(CountBody, kw_only=True):
    max_tokens: Positive
    stream: bool | None = None
    temperature: Fraction | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: StopStrings | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    forced_token_ids: Annotated[list[TokenId], Meta(max_length=1 << 20)] | None = None
    metadata: Any = None

    @property
    def sampling(self) -> SamplingFields:
        """As the other dialects have it."""
        return SamplingFields(
            model=self.model,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop_sequences or None,
            ignore_eos=self.ignore_eos,
            forced_token_ids=self.forced_token_ids,
        )

    @property
    def user_id(self) -> Any:
        """``metadata.user_id``, which may hold a session."""
        return self.metadata.get("user_id") if isinstance(self.metadata, dict) else None


def conversation_of(body: CountBody) -> Conversation:
    """Raises a 400 naming the block."""
    if not body.messages:
        raise invalid("messages", "is empty")
    choice = body.tool_choice.type if body.tool_choice else "auto"
    if choice not in ("auto", "none"):
        raise invalid("tool_choice.type", "only 'auto' and 'none' are supported", "unsupported")
    shown: list[dict[str, Any]] = []
    if body.system:
        shown.append({"role": "system", "content": _text("system", body.system)})
    for i, message in enumerate(body.messages):
        shown += _message(f"messages[{i}]", message)
    return Conversation(shown, None if choice == "none" else _tools(body.tools))


def _message(place: str, message: AnthropicMessage) -> list[dict[str, Any]]:
    if message.role not in ("user", "assistant", "system"):
        raise invalid(f"{place}.role", f"{message.role[:64]!r} is not 'user' or 'assistant'")
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(f"{place}.content", message.content)]
    return _user(f"{place}.content", message.role, message.content)


def _user(place: str, role: str, blocks: list[Block]) -> list[dict[str, Any]]:
    """One message for each tool result, then one with the text, as the dialect orders them."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(blocks):
        if block.type == "tool_result":
            content = _text(f"{place}[{i}].content", block.content or "")
            result = {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content}
            results.append(result)
        else:
            texts.append(_text_block(f"{place}[{i}]", block))
    if texts or not results:
        results.append({"role": role, "content": "\n".join(texts)})
    return results


def _assistant(place: str, blocks: list[Block]) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if block.type == "tool_use":
            if block.name is None:
                raise invalid(f"{place}[{i}].name", "is required")
            function = {"name": block.name, "arguments": block.input or {}}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type not in ("thinking", "redacted_thinking"):
            texts.append(_text_block(f"{place}[{i}]", block))
    shown: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        shown["tool_calls"] = calls
    return shown


def _text(place: str, content: str | list[Block]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text_block(f"{place}[{i}]", block) for i, block in enumerate(content))


def _text_block(place: str, block: Block) -> str:
    if block.type != "text" or block.text is None:
        raise invalid(
            f"{place}.type", f"{block.type[:64]!r} is not supported: these models read text"
        )
    return block.text


def _tools(tools: list[ToolDefinition] | None) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    shown = []
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise invalid(f"tools[{i}].type", f"{tool.type!r} is not supported, only 'custom'")
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
        shown.append({"type": "function", "function": function})
    return shown
