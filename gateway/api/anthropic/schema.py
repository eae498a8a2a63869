"""The Anthropic Messages body. Messages are read by ``conversation.py``: their blocks are of any
kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alipes.gateway.api.sampling import (
    Fraction,
    Positive,
    SamplingFields,
    StopStrings,
    TokenId,
    TopK,
)
from alipes.gateway.api.wishes import (
    Choice,
    Wished,
    anthropic_choice,
    functions_of,
    json_answer,
    schema_field,
    wished,
)
from alipes.gateway.conversation.message import NO_PARAMETERS, Tool


class ToolDefinition(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None

    @property
    def hosted(self) -> bool:
        """A tool of the server, as ``web_search_20250305``."""
        return self.type not in (None, "custom")


class ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct):
    format: dict[str, Any] | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """What a prompt consists of; all that ``count_tokens`` needs. Unknown fields (thinking,
    cache_control, betas) are ignored."""

    model: str
    messages: list[Any]
    system: Any = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None


class MessagesBody(CountBody, kw_only=True):
    max_tokens: Positive
    stream: bool | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    stop_sequences: StopStrings | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    forced_token_ids: Annotated[list[TokenId], Meta(max_length=1 << 20)] | None = None
    metadata: Any = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None

    def wished(self, tools: Sequence[Tool]) -> Wished | None:
        """``tools`` are those that are shown. Raises a 400 naming the field."""
        form, field = self.output_format, "output_format"
        if self.output_config is not None and self.output_config.format is not None:
            form, field = self.output_config.format, "output_config.format"
        answer = json_answer(form, field)
        return wished(
            choice_of(self),
            functions_of(tools),
            answer,
            schema_field(form, field),
            hosted={tool.name for tool in self.tools or () if tool.hosted},
        )

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


def choice_of(body: CountBody) -> Choice:
    """Raises a 400 naming the field."""
    choice = body.tool_choice
    if choice is None:
        return Choice()
    return anthropic_choice(choice.type, choice.name, choice.disable_parallel_tool_use is True)


def tools_of(tools: Sequence[ToolDefinition] | None) -> list[Tool]:
    """Those that the client runs and describes. Tools of the server, which agents offer unasked,
    are left out: nothing here runs them, and a model does not call what it does not see."""
    return [
        Tool(tool.name, tool.description, tool.input_schema or NO_PARAMETERS)
        for tool in tools or ()
        if not tool.hosted
    ]
