"""Fit a recorded session into a smaller context by shortening each of its messages once.

Every message keeps the same share of its characters, its beginning and its end, whichever
prompt it stands in: prompts that were prefixes of later prompts still are. A sliding window
would instead change the beginning of every prompt and with it what a prefix cache can reuse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from alipes.replay.conversation import Conversation, Exchange
from alipes.replay.traces.model import Message, ToolCall

KEEP_AT_LEAST: Final = 48
MIN_SHARE: Final = 0.005
# Tokens of a chat template around one message and around a prompt, on the safe side.
PER_MESSAGE: Final = 16
PER_PROMPT: Final = 64


def shorten_text(text: str, share: float) -> str:
    """``text`` cut to about ``share`` of its characters: two thirds of them from its beginning,
    the rest from its end, and between them how many are missing."""
    keep = max(KEEP_AT_LEAST, int(len(text) * share))
    tail = keep // 3
    cut = f"{text[: keep - tail]}\n[{len(text) - keep} characters cut]\n{text[len(text) - tail :]}"
    return cut if keep < len(text) and len(cut) < len(text) else text


def shorten_message(message: Message, share: float) -> Message:
    """The same message with its text, and the texts in its tool calls, shortened."""
    return dataclasses.replace(
        message,
        content=shorten_text(message.content, share),
        tool_calls=tuple(_shorten_tool_call(call, share) for call in message.tool_calls),
    )


def shorten_conversation(conversation: Conversation, share: float) -> Conversation:
    """Every message of every call shortened to ``share``; 1 leaves all as it is."""
    if share >= 1:
        return conversation
    known: dict[Message, Message] = {}

    def short(message: Message) -> Message:
        if message not in known:
            known[message] = shorten_message(message, share)
        return known[message]

    return tuple(
        tuple(Exchange(tuple(map(short, one.prompt)), short(one.reply)) for one in branch)
        for branch in conversation
    )


def text_of(message: Message) -> str:
    """What the model reads or writes for a message: its text and its tool calls."""
    calls = (
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls
    )
    return "\n".join(filter(None, (message.content, *calls)))


def texts_of(exchanges: Iterable[Exchange]) -> frozenset[str]:
    """Every distinct text whose tokens must be known to size the calls."""
    return frozenset(text_of(message) for one in exchanges for message in (*one.prompt, one.reply))


def tokens_needed(exchanges: Iterable[Exchange], counts: Mapping[str, int]) -> int:
    """An upper bound on prompt + completion tokens of the longest call, where ``counts`` has the
    tokens of each of ``texts_of``."""
    return max(
        PER_PROMPT
        + sum(PER_MESSAGE + counts[text_of(message)] for message in (*one.prompt, one.reply))
        for one in exchanges
    )


def smaller_share(share: float, needed: int, context: int) -> float | None:
    """The share to try when ``needed`` tokens do not fit ``context``; None when it is hopeless."""
    smaller = share * min(0.98, context / needed)
    return smaller if smaller >= MIN_SHARE else None


def _shorten_tool_call(call: ToolCall, share: float) -> ToolCall:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return dataclasses.replace(call, arguments=shorten_text(call.arguments, share))
    short = msgspec.json.encode(_shorten_value(arguments, share)).decode()
    return dataclasses.replace(call, arguments=short)


def _shorten_value(value: object, share: float) -> object:
    """Texts shortened inside ``value``, so that JSON stays JSON."""
    if isinstance(value, str):
        return shorten_text(value, share)
    if isinstance(value, list):
        return [_shorten_value(item, share) for item in value]
    if isinstance(value, dict):
        return {key: _shorten_value(item, share) for key, item in value.items()}
    return value
