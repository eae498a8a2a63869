"""What a chat template can take, found by trying, and conversations brought into that shape.

Templates differ in the conversations they accept: some want the system's message first or not at
all, some that user and assistant take turns. What one would refuse is shown in another place, the
same at every turn of a conversation. Templates that know no tools: see ``told_tools``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from alipes.gateway.conversation.message import Message, joined
from alipes.gateway.text.errors import TextError

_SYSTEM: Final = Message("system", "alpha")
_USER: Final = Message("user", "beta")
_ASSISTANT: Final = Message("assistant", "gamma")

Render = Callable[[Sequence[Message]], str]


@dataclass(frozen=True, slots=True)
class Abilities:
    """``system``: a message of the system's at the start; ``late_system``: also later on;
    ``in_a_row``: two messages of one speaker; ``opens``: an assistant that speaks first."""

    system: bool = True
    late_system: bool = True
    in_a_row: bool = True
    opens: bool = True

    @property
    def all(self) -> bool:
        return self == Abilities()


def abilities_of(render: Render) -> Abilities:
    """``render`` raises ``TextError`` for what the template refuses."""

    def shows(*messages: Message) -> bool:
        try:
            text = render(messages)
        except TextError:
            return False
        return all(message.text in text for message in messages)

    if not shows(_USER):
        return Abilities()
    return Abilities(
        system=shows(_SYSTEM, _USER),
        late_system=shows(_SYSTEM, _USER, _ASSISTANT, replace(_SYSTEM, text="zeta"), _USER),
        in_a_row=shows(_USER, replace(_USER, text="eta")),
        opens=shows(_ASSISTANT, _USER),
    )


def adapted(messages: Sequence[Message], able: Abilities) -> Sequence[Message]:
    """The conversation as a template can take it."""
    if able.all:
        return messages
    shown: Iterable[Message] = messages
    if not able.system or not able.late_system:
        shown = _systems(shown, able)
    if not able.opens:
        shown = _opened(shown)
    if not able.in_a_row:
        shown = _taking_turns(shown)
    return list(shown)


def _systems(messages: Iterable[Message], able: Abilities) -> Iterator[Message]:
    """Those that are not at the start are told by the user; so is one there if need be."""
    for i, message in enumerate(messages):
        if message.role == "system" and (i or not able.system):
            yield replace(message, role="user")
        else:
            yield message


def _opened(messages: Iterable[Message]) -> Iterator[Message]:
    spoken = False
    for message in messages:
        if not spoken and message.role == "assistant":
            yield Message("user")
        spoken |= message.role != "system"
        yield message


def _taking_turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Messages of one speaker in a row become one; results stay apart, as one answers one call."""
    for role, group in groupby(messages, lambda message: message.role):
        if role == "tool":
            yield from group
        else:
            yield joined(group)
