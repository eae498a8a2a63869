"""From the messages of recorded runs to calls with lengths.

A message is as long as ``count`` says its text and tool calls are, at least one token; what a
template puts around it is not counted. Its content is named by its text, in every session alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Turn, Wait, stream_id
from alipes.replay.traces.model import Call as RecordedCall
from alipes.replay.traces.model import Message

Count = Callable[[str], int]


def quarter(text: str) -> int:
    """The estimate where nothing better is at hand: four characters a token."""
    return -(-len(text) // 4)


@dataclass(slots=True)
class TextBranch:
    """One branch's calls, added in order. ``messages`` is its context so far."""

    count: Count
    messages: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def call(
        self,
        prompt: Sequence[Message],
        reply: Message,
        gap: float,
        wait: Wait,
        output: int | None = None,
    ) -> Call:
        """``output``: tokens of the reply where they were recorded."""
        kept = 0
        for known, message in zip(self.messages, prompt, strict=False):
            if known != message:
                break
            kept += 1
        new = tuple(prompt[kept:])
        sizes = [self.size(message) for message in new]
        drawn = self.size(reply) if output is None else max(1, output)
        before = sum(self.sizes[:kept])
        added = tuple(
            Span(stream_id("text", *_texts(message)), 0, size)
            for message, size in zip(new, sizes, strict=True)
        )
        turn = Turn(kept, new, reply)
        self.messages[kept:] = [*new, reply]
        self.sizes[kept:] = [*sizes, drawn]
        return Call(before + sum(sizes), drawn, before, added, gap, wait, turn=turn)

    def size(self, message: Message) -> int:
        _, *texts = _texts(message)
        return max(1, sum(map(self.count, filter(None, texts))))


def _texts(message: Message) -> list[str]:
    calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return [message.role, message.content, *calls]


def session_of(name: str, run: Sequence[RecordedCall], agent: str, count: Count) -> Session:
    """A recorded run without sub-agents."""
    branch = TextBranch(count)
    calls = tuple(
        branch.call(call.prompt, call.reply, call.gap, Wait.TOOL if index else Wait.START)
        for index, call in enumerate(run)
    )
    return Session(name, (Branch(MAIN, calls),), agent=agent)
