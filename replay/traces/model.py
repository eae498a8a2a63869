"""A recorded agent run as the replay sees it, whatever format it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A recorded tool call; ``arguments`` is the text that the model wrote, JSON as a rule."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. ``answers`` is the id of the tool call that a ``tool`` message answers."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    answers: str = ""

    def wire(self) -> dict[str, object]:
        """The message in the form of the chat completions API."""
        body: dict[str, object] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            body["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        if self.answers:
            body["tool_call_id"] = self.answers
        return body


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call: its whole prompt, what the model replied, and ``gap``, the seconds that
    passed (a tool ran) between the end of the previous call and this one; 0 where unrecorded."""

    prompt: tuple[Message, ...]
    reply: Message
    gap: float


class TraceError(Exception):
    """A trace cannot be replayed: the file, the field and what to do, in one line."""

    def __init__(self, path: Path, field: str, problem: str, remedy: str) -> None:
        where = f"{path}: {field}" if field else str(path)
        super().__init__(f"{where}: {problem}; {remedy}")
        self.path = path
        self.field = field
