"""What a reply comes to, by us and by others, in a form that can be compared."""

from __future__ import annotations

import json
from typing import Any

from tests.oracles.corpus import FORMS, TOOLS, Reply

from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)

Read = tuple[str, str, list[tuple[str, Any]]]


def ours(reply: Reply) -> Read:
    """Thoughts, text and whole calls; blanks around and between them do not count."""
    parser = FORMS[reply.form].parser(TOOLS, reply.opened, lambda: "x")
    deltas: list[Delta] = [delta for part in reply.parts for delta in parser.push(part)]
    deltas += parser.finish()
    thinking = "".join(d.text for d in deltas if isinstance(d, ThinkingDelta))
    text = "".join(d.text for d in deltas if isinstance(d, TextDelta))
    names = {d.index: d.name for d in deltas if isinstance(d, ToolStart)}
    calls = [
        (names[end.index], json.loads(_arguments(deltas, end.index)))
        for end in deltas
        if isinstance(end, ToolEnd) and end.whole
    ]
    return thinking.strip(), text.strip(), calls


def theirs(told: dict[str, Any]) -> Read:
    """The same of a driver's answer; arguments that are no JSON stay a text."""
    calls = [(name, _value(arguments)) for name, arguments in told["calls"]]
    return told["thinking"].strip(), told["text"].strip(), calls


def _arguments(deltas: list[Delta], index: int) -> str:
    return "".join(d.text for d in deltas if isinstance(d, ToolArguments) and d.index == index)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
