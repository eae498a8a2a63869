"""How a chat template takes the calls of tools, found by trying.

Most templates take the arguments of a call as a mapping. Some add them to the text, as DeepSeek's
do, so that they must be JSON text; R1's shows the calls of a message only if it has no content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from alipes.gateway.conversation.message import Message, ToolCall, shown
from alipes.gateway.text.errors import TextError

_SAID: Final = "zq_said"
_NAME: Final = "zq_probe"
_VALUE: Final = "zq_value"
_USER: Final = Message("user", "a")


@dataclass(frozen=True, slots=True)
class CallShape:
    """``as_text``: arguments are JSON text; ``alone``: calls are in messages without content;
    ``takes_text``: arguments that are no object are taken as they are."""

    as_text: bool = False
    alone: bool = False
    takes_text: bool = True

    def messages(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """As the template takes them."""
        return list(map(self._message, self._apart(messages) if self.alone else messages))

    def _apart(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            if message.calls and message.text:
                yield replace(message, calls=())
                yield replace(message, text="", reasoning="")
            else:
                yield message

    def _message(self, message: Message) -> dict[str, Any]:
        made = shown(message)
        if not message.calls:
            return made
        for call, entry in zip(message.calls, made["tool_calls"], strict=True):
            entry["function"]["arguments"] = self._arguments(call.arguments)
        return {**made, "content": None} if self.alone else made

    def _arguments(self, arguments: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(arguments, dict):
            return json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        # A call that broke off is part of a session for good.
        return arguments if self.takes_text else {"input": arguments}


Render = Callable[[Sequence[Message], CallShape], str]
_SHAPES: Final = tuple(
    CallShape(as_text, alone) for alone in (False, True) for as_text in (False, True)
)


def call_shape_of(render: Render) -> CallShape | None:
    """None where calls are not shown in any shape. ``render`` raises ``TextError`` for what the
    template refuses."""

    def shows(shape: CallShape, arguments: dict[str, Any] | str, *parts: str) -> bool:
        call = ToolCall(_NAME, arguments, "c00000000")
        try:
            text = render((_USER, Message("assistant", _SAID, calls=(call,))), shape)
        except TextError:
            return False
        # A template that wants a text prints a mapping as Python does.
        return all(part in text for part in parts) and repr(arguments) not in text

    for parts in ((_SAID, _NAME, _VALUE), (_NAME,)):
        for shape in _SHAPES:
            if shows(shape, {"a": _VALUE}, *parts):
                takes_text = shows(shape, '{"a": "' + _VALUE, *parts)
                return CallShape(shape.as_text, shape.alone, takes_text)
    return None
