"""The formats that can be read, and which one a file is in."""

from __future__ import annotations

import csv
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces import (
    agentic,
    azure,
    bailian,
    claude_code,
    claude_sessions,
    gateway_log,
    mini_swe_agent,
    mooncake,
    own,
    swe_agent,
    trie,
    weka,
)
from alipes.replay.traces.form import Trace
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.lines import plain_name
from alipes.replay.traces.model import Call, TraceError
from alipes.replay.traces.parts import UNREADABLE
from alipes.replay.traces.source import Source
from alipes.replay.traces.text import Count, quarter, session_of
from alipes.replay.traces.turns import Prompts

log = logging.getLogger(__name__)


def _log(path: Path, warning: str) -> None:
    log.warning("%s: %s", path, warning)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read: ``count`` tells the tokens of a text, ``block`` the tokens of a hash id where
    the format does not say, ``prompts`` what the lengths of a Mooncake session count; ``warn`` is
    told of a file that could be read in another way."""

    count: Count = quarter
    block: int = BLOCK
    prompts: Prompts = Prompts.UNKNOWN
    warn: Callable[[Path, str], None] = _log


@dataclass(frozen=True, slots=True)
class Taken:
    """The format of a file, and what told it."""

    format: str
    why: str


Reader = Callable[[Source, Reading], Trace]


def _run(read_calls: Callable[[Path, bytes], tuple[Call, ...]], agent: str) -> Reader:
    """A reader of files that hold one recorded run, which is named after the file's name and
    content."""

    def read(source: Source, reading: Reading) -> Trace:
        path, data = source.path, source.data
        digest = hashlib.blake2b(data, digest_size=4).hexdigest()
        name = plain_name(path)
        for suffix in (".json", ".traj"):
            name = name.removesuffix(suffix)
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:48]
        calls = read_calls(path, data)
        return Trace(path.name, (session_of(f"{stem}-{digest}", calls, agent, reading.count),))

    return read


READERS: Final[Mapping[str, Reader]] = {
    own.NAME: lambda file, _: own.read(file.path, file.data),
    "mooncake": lambda file, how: mooncake.read(
        file.path, file.data, how.count, how.block, how.prompts, how.warn
    ),
    "agentic-mooncake": lambda file, how: agentic.read(file.path, file.data, how.block),
    "bailian": lambda file, how: bailian.read(file.path, file.data, how.warn),
    "trie": lambda file, _: trie.read(file.path, file.data),
    "weka": lambda file, _: weka.read(file.path, file.data),
    "azure": lambda file, _: azure.read(file),
    "claude-code": lambda file, how: claude_code.read([file], how.count, how.warn),
    "claude-code-sessions": lambda file, _: claude_sessions.read(file.path, file.data),
    "swe-agent": _run(swe_agent.read_calls, "swe-agent"),
    "gateway": lambda file, _: gateway_log.read(file.path, file.data),
    "mini-swe-agent": _run(mini_swe_agent.read_calls, "mini-swe-agent"),
}

TOGETHER: Final[Mapping[str, Callable[[Sequence[Source], Reading], Trace]]] = {
    "claude-code": lambda files, how: claude_code.read(files, how.count, how.warn)
}
"""Formats of which one session may be in several files."""

NAMES: Final = ((".traj.json", "mini-swe-agent"), (".traj", "swe-agent"), (".csv", "azure"))

# The keys of a file's first object, or of its only one; the first that are all there decide.
KEYS: Final[tuple[tuple[set[str], str], ...]] = (
    ({"format", "version"}, own.NAME),
    ({"kind", "block_tokens"}, "gateway"),
    ({"num_turns", "input_prompt_length"}, "trie"),
    ({"requests"}, "weka"),
    ({"session", "branches"}, "claude-code-sessions"),
    ({"history"}, "swe-agent"),
    ({"chat_id", "input_length", "output_length"}, "bailian"),
    *(({name, "output_length"}, "mooncake") for name in mooncake.INPUTS),
    ({"request_id"}, "agentic-mooncake"),
    ({"messages"}, "mini-swe-agent"),
    ({"type"}, "claude-code"),
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])


def format_of(source: Source) -> Taken:
    """A file's format, by its name or else its content. Raises ``TraceError``."""
    path = source.path
    for suffix, name in NAMES:
        if plain_name(path).endswith(suffix):
            return Taken(name, f"its name ends in {suffix}")
    if not source.head.strip():
        raise TraceError(path, "", "is empty", "give the whole file")
    if _is_azure(source.head):
        return Taken("azure", f"its first line names the columns {', '.join(azure.COLUMNS)}")
    first = _first(source.data)
    if isinstance(first, list):
        return Taken("mini-swe-agent", "it is one JSON list")
    if "request_id" in first and (told := _agentic(source.data)):
        return Taken("agentic-mooncake", told)
    for keys, name in KEYS:
        if keys <= set(first):
            return Taken(name, f"its first object has {', '.join(sorted(keys))}")
    remedy = f"give --format, one of {', '.join(READERS)}"
    raise TraceError(path, "line 1", "is not of a format known here", remedy)


def _is_azure(head: bytes) -> bool:
    line = head.lstrip().splitlines()[0].decode(errors="replace")
    return azure.is_header(next(csv.reader([line], skipinitialspace=True), []))


def _agentic(data: bytes) -> str:
    """What only agentic Mooncake says, and where; empty if no row does. The first of a session need
    not, and other Mooncake rows may have ids of requests and sessions too."""
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            row = _OBJECT.decode(line)
        except UNREADABLE:
            continue
        if told := agentic.DEFINING.intersection(row):
            return f"its rows have request_id, and line {number} {', '.join(sorted(told))}"
    return ""


def _first(data: bytes) -> Mapping[str, object] | list[msgspec.Raw]:
    """The first line, or all of a file that is one object over several lines; empty if it is
    neither."""
    for text in (data.lstrip().split(b"\n", 1)[0], data):
        try:
            return _OBJECT.decode(text)
        except UNREADABLE:
            continue
    return {}
