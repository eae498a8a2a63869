"""From a conversation to the text that is tokenized: client text marked, then the template."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from alipes.gateway.conversation.message import Conversation, Message, Tool
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.literal import END, Literals
from alipes.gateway.text.template import ChatTemplate

_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Rendered:
    """``marked`` are the keys (see ``cache``) of the parts that have marks in ``text``."""

    text: str
    marked: frozenset[int]


def rendered(
    template: ChatTemplate,
    literals: Literals,
    conversation: Conversation,
    keys: Sequence[int],
    clear: AbstractSet[int] = _NONE,
) -> Rendered:
    """The text of a prompt. ``keys`` are of the tools and of every message; those in ``clear``
    are known to need no marks. Raises ``TextError``."""
    tools, messages = _marked_tools(literals, conversation, keys[0] in clear), []
    marked = set() if tools is conversation.tools else {keys[0]}
    for key, message in zip(keys[1:], conversation.messages, strict=True):
        made = message if key in clear else literals.message(message)
        if made is not message:
            marked.add(key)
        messages.append(made)
    text = _text(template, messages, tools, conversation.continues)
    return Rendered(text, frozenset(marked))


def _marked_tools(literals: Literals, conversation: Conversation, clear: bool) -> Sequence[Tool]:
    tools = conversation.tools
    if clear:
        return tools
    made = [literals.tool(tool) for tool in tools]
    return tools if all(map(_same, made, tools)) else made


def _same(one: object, other: object) -> bool:
    return one is other


def _text(
    template: ChatTemplate, messages: list[Message], tools: Sequence[Tool], continues: bool
) -> str:
    if not continues:
        return template.render(messages, tools)
    last = messages[-1]
    messages[-1] = replace(last, text=last.text + END)
    before, mark, _ = template.render(messages, tools, speaks=False).rpartition(END)
    if not mark:
        message = "the model's chat template cannot go on with an assistant's message: end with"
        raise TextError(f"messages[{len(messages) - 1}]", f"{message} one of the user's")
    return before
