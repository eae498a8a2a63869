"""Tools for models whose chat template shows none: told in the system's message, with the form in
which they are to be called.

That is the family's own form where the template shows calls (DeepSeek's templates show calls, but
not what can be called); else that of Hermes, which a model can be asked to write, and calls and
results are told as text too. What a conversation shows of its tools is the same at every turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from alipes.gateway.conversation.message import Message, Tool, ToolCall, shown_tool
from alipes.gateway.text.errors import TextError

Render = Callable[[Sequence[Message], Sequence[Tool]], str]

_HEAD: Final = """\
You may call functions while you answer. Their signatures, one JSON object a line:
<tools>
"""
_TAIL: Final = """
</tools>
To call one, write its name and arguments """
_PROBE: Final = "zq_probe"


def offers_tools(render: Render) -> bool:
    """Whether a template shows the tools that are offered. ``render`` raises ``TextError`` for what
    the template refuses."""
    offered = (Tool(_PROBE, "", {"type": "object"}),)
    try:
        return _PROBE in render((Message("user", "a"),), offered)
    except TextError:
        return False


def told(
    messages: Sequence[Message], tools: Sequence[Tool], example: str, calls: bool
) -> list[Message]:
    """Messages with the tools, and an ``example`` of a call, in that of the system; unless the
    template shows ``calls``, these and results are text of the assistant's and the user's."""
    made = list(messages if calls else _turns(messages))
    if not tools:
        return made
    text = _HEAD + "\n".join(_json(shown_tool(tool)) for tool in tools) + _TAIL + example
    if made and made[0].role == "system":
        before = made[0].text
        made[0] = replace(made[0], text=f"{before}\n\n{text}" if before else text)
    else:
        made.insert(0, Message("system", text))
    return made


def _turns(messages: Sequence[Message]) -> Iterator[Message]:
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            yield Message("user", "\n".join(map(_result, group)))
        else:
            yield from map(_said, group)


def _result(message: Message) -> str:
    return f"<tool_response>\n{message.text}\n</tool_response>"


def _said(message: Message) -> Message:
    if not message.calls:
        return message
    texts = [message.text] * bool(message.text) + [_call(call) for call in message.calls]
    return replace(message, text="\n".join(texts), calls=())


def _call(call: ToolCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
    return f'<tool_call>\n{{"name": {_json(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
