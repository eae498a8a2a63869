"""A call that is one JSON object, read while it is written.

Where the name comes first, the arguments are passed on as they come; otherwise the call appears
when its object is complete. Should the arguments go wrong when part of them has been passed on,
that part stays as it is, the call does not count, and the rest comes back as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from alipes.gateway.text.reply.json_scan import ObjectScanner
from alipes.gateway.text.reply.source import Source, Wait, unicode

KEYS: Final = ("arguments", "parameters")
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_HEADER: Final = re.compile(
    rf'\s*\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*({_STRING})\s*,'
    rf'\s*"(?:{"|".join(KEYS)})"\s*:\s*',
    re.DOTALL,
)


@dataclass(slots=True)
class _Object:
    """``body`` is what has been read and not been passed on. With ``names`` only an object that
    has one of these and arguments is a call. ``looked`` for the name before the first object
    inside, behind which there is none. ``arguments``, while they are read, end at a depth of
    ``outside``."""

    names: Collection[str] | None = None
    scanner: ObjectScanner = field(default_factory=ObjectScanner)
    body: list[str] = field(default_factory=list)
    begun: bool = False
    looked: bool = False
    arguments: bool = False
    outside: int = 1


class Read(NamedTuple):
    """``called``: an object that is a call. ``begun``: the client has been told of one. ``rest`` is
    what was read and not passed on where it is none, or went wrong."""

    called: bool
    begun: bool
    rest: str = ""


def json_call(source: Source, names: Collection[str] | None = None) -> Generator[None, None, Read]:
    """Read one object. ``names`` are those of the tools where nothing but the object itself tells
    that it is a call."""
    read = _Object(names)
    if (yield from _object(source, read)):
        return _completed(source, read)
    return Read(False, read.begun, "".join(read.body))


def json_arguments(source: Source) -> Generator[None, None, Read]:
    """Read one object that is the arguments of the call which has been told last, and end it."""
    read = _Object(begun=True, arguments=True, outside=0)
    return Read((yield from _object(source, read)), True)


def _object(source: Source, read: _Object) -> Wait:
    """Whether a whole object was read; arguments that break off, or are none, end their call."""
    while source.text or (yield from source.more()):
        if not _letters(source, read):
            break
        if read.scanner.done:
            return True
    if read.arguments:
        source.end(whole=False)
    return False


def _letters(source: Source, read: _Object) -> bool:
    """Read what is there, up to the object's end; False where it is no object any more."""
    scanner = read.scanner
    for at, letter in enumerate(source.text):
        depth, inside = scanner.depth, scanner.in_string
        if not scanner.feed(letter):
            source.take(at)
            return False
        if not read.begun and not read.looked and letter == "{" and (depth, inside) == (1, False):
            read.looked = True
            _begin(source, read)
        if not read.arguments:
            read.body.append(letter)
        else:
            source.argue(json.dumps(letter)[1:-1] if inside and letter < " " else letter)
            if scanner.depth == read.outside:
                read.arguments = False
                source.end(whole=True)
        if scanner.done:
            source.take(at + 1)
            return True
    source.take(len(source.text))
    return True


def _begin(source: Source, read: _Object) -> None:
    """The arguments' object opens: if the name came before it, the call is under way."""
    header = _HEADER.fullmatch("".join(read.body))
    name = json.loads(header[1], strict=False) if header else None
    if name is not None and (read.names is None or name in read.names):
        source.start(name)
        read.begun = read.arguments = True
        read.body = []


def _completed(source: Source, read: _Object) -> Read:
    """One that was not under way yet appears now, if it is a call."""
    if read.begun:
        return Read(True, True)
    body = "".join(read.body)
    call = whole_call(body, bare=read.names is not None)
    if call is None or (read.names is not None and call[0] not in read.names):
        return Read(False, False, body)
    source.call(*call)
    return Read(True, True)


def whole_call(body: str, bare: bool) -> tuple[str, str] | None:
    """Name and arguments text of a complete object, or None if it is not a call; a ``bare`` one
    must have arguments."""
    try:
        call = json.loads(body, strict=False)
        name = call.get("name")
        arguments: Any = next((call[key] for key in KEYS if key in call), None if bare else {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        return name, unicode(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):  # deeper, longer or larger than Python's JSON goes
        return None
