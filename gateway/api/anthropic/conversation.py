"""What the Anthropic Messages body says, as a conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from alipes.gateway.api.anthropic.schema import CountBody, choice_of, tools_of
from alipes.gateway.api.errors import invalid
from alipes.gateway.api.wishes import Mode
from alipes.gateway.conversation.content import string_of, text_of
from alipes.gateway.conversation.message import Conversation, Message, ToolCall, goes_on

_ROLES: Final = ("user", "assistant", "system")
# Claude Code begins its system prompt with a line of bookkeeping that differs from call to call
# or from session to session, and says nothing to a model.
_BOOKKEEPING: Final = re.compile(r"\s*x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.IGNORECASE)


def conversation_of(body: CountBody) -> Conversation:
    """Raises a 400, or ``TextError``, that names the block."""
    if not body.messages:
        raise invalid("messages", "is empty")
    messages = list(_system(body.system))
    for i, message in enumerate(body.messages):
        messages += _messages(f"messages[{i}]", message, last=i == len(body.messages) - 1)
    mute = choice_of(body).mode is Mode.NONE
    return Conversation(messages, tools_of(body.tools), mute, continues=goes_on(messages))


def _system(system: Any) -> Iterator[Message]:
    blocks = system if isinstance(system, list) else [system] if system else []
    texts = [text_of(block, f"system[{i}]") for i, block in enumerate(blocks)]
    if texts and (line := _BOOKKEEPING.match(texts[0])):
        rest = texts[0][line.end() :]
        texts[:1] = [rest] if rest else []
    if texts:
        yield Message("system", "\n".join(texts))


def _messages(place: str, message: Any, last: bool) -> list[Message]:
    if not isinstance(message, Mapping):
        raise invalid(place, "is not an object")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise invalid(f"{place}.role", f"{str(role)[:64]!r} is not 'user' or 'assistant'")
    place = f"{place}.content"
    if not isinstance(content, list):
        return [Message(role, text_of(content, place, handed=last and role == "user"))]
    if role == "assistant":
        return [_assistant(place, content)]
    return _user(place, role, content, last)


def _user(place: str, role: Any, blocks: Sequence[Any], last: bool) -> list[Message]:
    """One message for each tool result, then one with the text, as the dialect orders them."""
    results: list[Message] = []
    texts: list[str] = []
    for i, block in enumerate(blocks):
        here = f"{place}[{i}]"
        if _kind(block) == "tool_result":
            text = text_of(block.get("content"), f"{here}.content")
            results.append(Message("tool", text, answers=string_of(block.get("tool_use_id"))))
        else:
            texts.append(text_of([block], place, handed=last))
    if texts or not results:
        results.append(Message(role, "\n".join(texts)))
    return results


def _assistant(place: str, blocks: Sequence[Any]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(blocks):
        match _kind(block):
            case "tool_use":
                calls.append(_call(f"{place}[{i}]", block))
            case "thinking":
                thoughts.append(text_of(block, f"{place}[{i}]"))
            case "redacted_thinking":
                pass
            case _:
                texts.append(text_of([block], place))
    return Message("assistant", "\n".join(texts), "\n".join(thoughts), tuple(calls))


def _call(place: str, block: Mapping[str, Any]) -> ToolCall:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str):
        raise invalid(f"{place}.name", "is required")
    arguments = given if isinstance(given, dict | str) else {}
    return ToolCall(name, arguments, string_of(block.get("id")))


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, Mapping) else None
