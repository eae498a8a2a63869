"""What a streamed completion said, read line by line; no sockets here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    function: _Function = _Function()


class _Delta(msgspec.Struct, frozen=True):
    """Servers call what a model thinks ``reasoning_content`` or ``reasoning``."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        """All that the model wrote; ids of tool calls are the server's own and left out."""
        calls = [call.function for call in self.tool_calls or ()]
        written = [part for call in calls for part in (call.name, call.arguments)]
        thought = self.reasoning_content or self.reasoning
        return "".join(filter(None, (thought, self.content, *written)))

    @property
    def empty(self) -> bool:
        """Whether it has no field for what a model draws, not even an empty one."""
        fields = (self.content, self.reasoning_content, self.reasoning, self.tool_calls)
        return all(field is None for field in fields)


class _Choice(msgspec.Struct, frozen=True):
    """``text`` is of a completion, ``delta`` of a chat completion."""

    delta: _Delta = _Delta()
    text: str | None = None
    finish_reason: str | None = None

    @property
    def written(self) -> str:
        return self.text or self.delta.text

    @property
    def token(self) -> bool:
        """Whether a token came with it, even one that shows as nothing yet: a part of a character,
        a special token. Without text, what tells the role or the end of a choice brings none."""
        if self.written:
            return True
        if self.finish_reason or self.delta.role:
            return False
        return self.text is not None or not self.delta.empty


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    restored_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """``keep_alive`` where it only says that the call goes on."""

    keep_alive: bool = False
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder: Final = msgspec.json.Decoder(_Chunk)
# What a decoder raises for bytes that are no such JSON, or nested too deep.
UNREADABLE: Final = (msgspec.DecodeError, RecursionError)

LONGEST_LINE: Final = 16 << 20


class Lines:
    """Cuts a stream into lines as its format does: at line feeds and carriage returns, and not at
    the other characters of Unicode that end a line, for those may stand in the text."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    def take(self, data: bytes) -> list[str]:
        """The lines that end in ``data``. Raises ValueError for one above ``LONGEST_LINE``."""
        lines = data.splitlines(keepends=True)
        if not lines:
            return []
        self._parts.append(lines[0])
        self._held += len(lines[0])
        if self._held > LONGEST_LINE:
            raise ValueError(f"a line of the stream is longer than {LONGEST_LINE} bytes")
        if not lines[0].endswith((b"\n", b"\r")):
            return []
        lines[0] = b"".join(self._parts)
        self._parts = [] if lines[-1].endswith((b"\n", b"\r")) else [lines.pop()]
        self._held = sum(map(len, self._parts))
        return [line.decode(errors="replace") for line in lines]


@dataclass(slots=True)
class Answer:
    """What one call gave. ``first`` and ``last`` are the instants (of the clock handed in) at
    which tokens came, shown as text or not, None if none ever did. ``error`` is empty when all
    went well."""

    first: int | None = None
    last: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    restored_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    instance: str = ""
    placement: str = ""
    output: str = ""
    error: str = ""
    _done: bool = field(default=False, init=False)
    _digest: hashlib.blake2b = field(
        default_factory=lambda: hashlib.blake2b(digest_size=8), init=False
    )

    def take(self, line: str, clock: Callable[[], int]) -> None:
        """One line of the stream; comments, keep-alives and other fields are passed over."""
        if self.error or not line.startswith("data:"):
            return
        event = line[5:].strip()
        if event == "[DONE]":
            self._done = True
            return
        try:
            self._chunk(_decoder.decode(event), clock)
        except UNREADABLE as error:
            self.error = f"an event of the stream is not a completion chunk: {error}"

    def close(self) -> None:
        """The stream is over."""
        if not self._done and not self.error:
            self.error = "the stream ended without [DONE]"
        self.output = self._digest.hexdigest()

    def _chunk(self, chunk: _Chunk, clock: Callable[[], int]) -> None:
        if chunk.keep_alive:
            return
        if chunk.error:
            self.error = f"in the stream: {_message_in(chunk.error)}"
        for choice in chunk.choices:
            # A choice that ends has drawn something: at the latest now.
            if choice.token or (choice.finish_reason and self.first is None):
                self._came(clock())
            self._digest.update(choice.written.encode())
            self.finish_reason = choice.finish_reason or self.finish_reason
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.completion_tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            self.cached_tokens = details.cached_tokens if details else None
            self.restored_tokens = details.restored_tokens if details else None

    def _came(self, now: int) -> None:
        self.last = now
        if self.first is None:
            self.first = now


def problem_of(status: int, body: bytes) -> str:
    """An HTTP error in one line: the status, and the message of an OpenAI or Anthropic error or
    the beginning of the body."""
    try:
        message = _message_in(msgspec.json.decode(body))
    except UNREADABLE:
        message = body[:200].decode(errors="replace")
    return f"{status}: {message}"


def _message_in(value: object) -> str:
    if isinstance(value, dict):
        inner = value.get("error") or value.get("message")
        if inner:
            return _message_in(inner)
    return str(value)[:300]
