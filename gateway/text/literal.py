"""Client text stays text: in a prompt only the template writes control tokens.

Before it is rendered, client text that could be read as a control token, alone or together with
what the template or another text puts beside it, is broken up with marks that no reader sees: the
noncharacter U+FDD0 and a letter that says what it stands for. The tokenizer's side (``tokens.py``)
finds control tokens only where no mark is, and takes the marks out of what it encodes as text.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from alipes.gateway.conversation.message import Message, Tool, ToolCall

SIGN: Final = "\ufdd0"
_BREAK: Final = SIGN + "b"
_ITSELF: Final = SIGN + "s"
END: Final = SIGN + "e"
"""Where the text of a message ends that is to be gone on with."""
_BRANCHES: Final = 32
_MARK: Final = re.compile(SIGN + "(.)", re.DOTALL)


def is_control(token: str) -> bool:
    """Whether an added token of a tokenizer means more than the text it has. Runs of blanks and
    single characters are there to save tokens."""
    return len(token) > 1 and not token.isspace()


def unmarked(text: str) -> str:
    """``text`` without marks, as the client wrote it."""
    if SIGN not in text:
        return text
    return _MARK.sub(lambda match: SIGN if match[1] == "s" else "", text)


class Literals:
    """``tokens`` are the texts of control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted(set(tokens), key=len, reverse=True)
        self.pattern = re.compile(_any_of(longest_first) if longest_first else r"(?!)")
        self._firsts = {token[0] for token in longest_first}
        self._longest = max(map(len, longest_first), default=0)
        self._beginnings = {token[:n] for token in longest_first for n in range(1, len(token))}
        self._endings: defaultdict[str, set[str]] = defaultdict(set)
        self._insides: set[str] = set()
        for token in longest_first:
            for n in range(1, len(token)):
                self._endings[token[n]].add(token[n:])
            self._insides |= set(_insides(token))

    def text(self, text: str) -> str:
        """``text`` so that it stays text wherever a template puts it."""
        if SIGN in text:
            text = text.replace(SIGN, _ITSELF)
        if any(first in text for first in self._firsts):
            text = self.pattern.sub(_broken, text)
        if not text:
            return text
        before = _BREAK if text in self._insides or self._may_end(text) else ""
        after = _BREAK if self._may_begin(text) else ""
        return f"{before}{text}{after}" if before or after else text

    def message(self, message: Message) -> Message:
        """The same message where nothing of it has to be marked."""
        calls = tuple(map(self._call, message.calls))
        made = replace(
            message,
            text=self.text(message.text),
            reasoning=self.text(message.reasoning),
            calls=calls,
            answers=self.text(message.answers),
            name=self.text(message.name),
        )
        return message if made == message else made

    def tool(self, tool: Tool) -> Tool:
        """As ``message``."""
        description = tool.description
        made = replace(
            tool,
            name=self.text(tool.name),
            description=None if description is None else self.text(description),
            parameters=self._value(tool.parameters),
        )
        return tool if made == tool else made

    def _call(self, call: ToolCall) -> ToolCall:
        try:
            arguments = self._value(call.arguments)
        except RecursionError:  # nested too deeply to be looked through, but not to be written
            arguments = self.text(json.dumps(call.arguments, ensure_ascii=False))
        return replace(call, name=self.text(call.name), arguments=arguments, id=self.text(call.id))

    def _value(self, value: Any) -> Any:
        """Every text in a JSON value, names included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self._value(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner) for inner in value]
        return value

    def _may_end(self, text: str) -> bool:
        """Whether a control token could end where ``text`` begins."""
        return any(map(text.startswith, self._endings.get(text[0], ())))

    def _may_begin(self, text: str) -> bool:
        """Whether a control token could begin where ``text`` ends."""
        tail = text[1 - self._longest :] if self._longest > 1 else ""
        return any(tail[n:] in self._beginnings for n in range(len(tail)))


def _any_of(tokens: Sequence[str], branches: int = _BRANCHES) -> str:
    """A pattern of the longest of ``tokens`` at a place. What several begin with stands in it once,
    so that the time at each place of a text hardly grows with their number. Not beyond so many
    ``branches`` within one token: patterns cannot be nested without end."""
    if len(tokens) == 1 or not branches:
        return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    common = _shared(min(tokens), max(tokens))
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for token in tokens:
        rest = token[common:]
        groups[rest[:1]].append(rest)
    ended = "?" if groups.pop("", None) else ""
    inner = "|".join(_any_of(group, branches - 1) for group in groups.values())
    return f"{re.escape(tokens[0][:common])}(?:{inner}){ended}"


def _shared(first: str, second: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _insides(token: str) -> Iterable[str]:
    """Words that are the token once a template has put signs around them, as in ``<word>``."""
    for start in range(1, len(token)):
        if token[start - 1].isalnum():
            return
        for end in range(len(token) - 1, start, -1):
            if token[end].isalnum():
                break
            yield token[start:end]


def _broken(match: re.Match[str]) -> str:
    token = match[0]
    return f"{token[0]}{_BREAK}{token[1:]}"
