"""The formats that can be read, and which one a file is in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces import (
    agentic,
    azure,
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
from alipes.replay.traces.text import Count, quarter, session_of


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read: ``count`` tells the tokens of a text, ``block`` the tokens of a hash id where
    the format does not say."""

    count: Count = quarter
    block: int = BLOCK


Reader = Callable[[Path, bytes, Reading], Trace]


def _run(read_calls: Callable[[Path, bytes], tuple[Call, ...]], agent: str) -> Reader:
    """A reader of files that hold one recorded run, which is named after the file's name and
    content."""

    def read(path: Path, data: bytes, reading: Reading) -> Trace:
        digest = hashlib.blake2b(data, digest_size=4).hexdigest()
        name = plain_name(path)
        for suffix in (".json", ".traj"):
            name = name.removesuffix(suffix)
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:48]
        calls = read_calls(path, data)
        return Trace(path.name, (session_of(f"{stem}-{digest}", calls, agent, reading.count),))

    return read


READERS: Final[Mapping[str, Reader]] = {
    own.NAME: lambda path, data, _: own.read(path, data),
    "mooncake": lambda path, data, how: mooncake.read(path, data, how.count, how.block),
    "agentic-mooncake": lambda path, data, how: agentic.read(path, data, how.block),
    "trie": lambda path, data, _: trie.read(path, data),
    "weka": lambda path, data, _: weka.read(path, data),
    "azure": lambda path, data, _: azure.read(path, data),
    "claude-code": lambda path, data, how: claude_code.read(path, data, how.count),
    "claude-code-sessions": lambda path, data, _: claude_sessions.read(path, data),
    "swe-agent": _run(swe_agent.read_calls, "swe-agent"),
    "gateway": lambda path, data, _: gateway_log.read(path, data),
    "mini-swe-agent": _run(mini_swe_agent.read_calls, "mini-swe-agent"),
}

NAMES: Final = ((".traj.json", "mini-swe-agent"), (".traj", "swe-agent"), (".csv", "azure"))

# The keys of a file's first object, or of its only one; the first that are all there decide.
KEYS: Final = (
    ({"format", "version"}, own.NAME),
    ({"kind", "block_tokens"}, "gateway"),
    ({"num_turns", "input_prompt_length"}, "trie"),
    ({"requests"}, "weka"),
    ({"session", "branches"}, "claude-code-sessions"),
    ({"history"}, "swe-agent"),
    *(({name, "output_length"}, "mooncake") for name in mooncake.INPUTS),
    ({"request_id"}, "agentic-mooncake"),
    ({"messages"}, "mini-swe-agent"),
    ({"type"}, "claude-code"),
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])


def format_of(path: Path, data: bytes) -> str:
    """The name of a file's format, by its name or else its content. Raises ``TraceError``."""
    for suffix, name in NAMES:
        if plain_name(path).endswith(suffix):
            return name
    remedy = f"give --format, one of {', '.join(READERS)}"
    if not data.strip():
        raise TraceError(path, "", "is empty", "give the whole file")
    if data.startswith(azure.COLUMNS[0].encode()):
        return "azure"
    first = _first(data)
    if isinstance(first, list):
        return "mini-swe-agent"
    if "request_id" in first and _is_agentic(data):
        return "agentic-mooncake"
    for keys, name in KEYS:
        if keys <= set(first):
            return name
    raise TraceError(path, "line 1", "is not of a format known here", remedy)


def _is_agentic(data: bytes) -> bool:
    """Whether a row says what only agentic Mooncake does. The first of a session need not, and
    other Mooncake rows may have ids of requests and sessions too."""
    for line in data.split(b"\n"):
        try:
            row = _OBJECT.decode(line)
        except UNREADABLE:
            continue
        if not agentic.DEFINING.isdisjoint(row):
            return True
    return False


def _first(data: bytes) -> Mapping[str, object] | list[msgspec.Raw]:
    """The first line, or all of a file that is one object over several lines; empty if it is
    neither."""
    for text in (data.lstrip().split(b"\n", 1)[0], data):
        try:
            return _OBJECT.decode(text)
        except UNREADABLE:
            continue
    return {}
