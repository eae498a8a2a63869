"""Tool calls in the forms of DeepSeek models.

All calls of a reply stand between two tags, each between two of its own. V3 and R1 write the kind
of call, the name and the arguments as JSON in a fenced block; V3.1 the name and the JSON alone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from alipes.gateway.text.reply.json_call import Read, json_arguments
from alipes.gateway.text.reply.source import Reading, Source
from alipes.gateway.text.reply.tagged import Spoken

CALLS: Final = "<｜tool▁calls▁begin｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
TAGS: Final = frozenset((CALLS, CALLS_END, CALL, CALL_END, SEPARATOR))
_FENCE: Final = "```"


def deepseek(source: Source) -> Reading:
    spoken = Spoken(source)
    while True:
        found, blanks = yield from source.until(CALLS, CALL, emit=spoken.say, blanks=True)
        if found is None:
            source.say("" if spoken.just_called else blanks)
            return
        opening = blanks
        if found == CALLS:
            opening += CALLS + (yield from source.blanks())
            if not (yield from source.skip(CALL)):
                spoken.say(opening)
                continue
        read = yield from _call(source)
        if not read.called:
            spoken.say(read.rest if read.begun else opening + CALL + read.rest)
            continue
        spoken.just_called = True
        for tag in (_FENCE, CALL_END, CALLS_END):
            yield from source.blanks()
            yield from source.skip(tag)


def _call(source: Source) -> Generator[None, None, Read]:
    """What follows the tag of one call, up to the end of its arguments."""
    head: list[str] = []
    found, _ = yield from source.until(SEPARATOR, CALL_END, emit=head.append)
    name = "".join(head)
    if found != SEPARATOR:
        return Read(False, False, name + (found or ""))
    if name.strip() == "function" and not (yield from source.begins("{")):
        line: list[str] = []
        found, _ = yield from source.until("\n", emit=line.append)
        name, before = "".join(line), f"{name}{SEPARATOR}{''.join(line)}{found or ''}"
    else:
        before = name + SEPARATOR
    before += yield from source.blanks()
    if (yield from source.skip(_FENCE + "json")):
        before += _FENCE + "json" + (yield from source.blanks())
    if not name.strip() or not (yield from source.begins("{")):
        return Read(False, False, before)
    source.start(name.strip())
    return (yield from json_arguments(source))
