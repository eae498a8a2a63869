"""The one form of a recorded workload: sessions, their branches, the calls of each.

What a prompt holds is told by identity, not by text: a call keeps so many tokens of its branch's
context and adds spans of named streams, so that sharing between calls, branches and sessions and
what a compaction throws away are exact. A branch's context is the prompt of its last call and the
reply after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from alipes.replay.traces.model import Message

MAIN: Final = "main"


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens ``start`` to ``start + length`` of a stream. A stream below zero belongs to the
    session alone; equal numbers from zero on are the same content in every session."""

    stream: int
    start: int
    length: int


class Wait(StrEnum):
    """What a call waited for: its session's beginning, a tool, the user, or branches."""

    START = "start"
    TOOL = "tool"
    USER = "user"
    BRANCH = "branch"


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a call: the first ``kept`` messages of its branch (of prompts and replies so
    far), then those ``added``; ``reply`` is what the model answered."""

    kept: int
    added: tuple[Message, ...]
    reply: Message


class Call(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``prompt`` tokens, of which the first ``kept`` are those of the branch's context, or for
    the first call of a branch of its parent's after the spawning call; the rest are ``added``.
    ``output`` tokens were drawn. The call is due ``gap`` seconds after what it waited for ended:
    the previous call of its branch, and for ``Wait.BRANCH`` all branches in ``joins``; a branch's
    first call after the call that spawned it, the main branch's after the session's start."""

    prompt: int
    output: int
    kept: int = 0
    added: tuple[Span, ...] = ()
    gap: float = 0.0
    wait: Wait = Wait.TOOL
    joins: tuple[str, ...] = ()
    turn: Turn | None = None


class Branch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One context. All but the main branch were spawned by call ``spawned_by`` of ``parent``,
    which comes before them. ``model`` is empty where it is the session's."""

    name: str
    calls: tuple[Call, ...]
    parent: str = ""
    spawned_by: int = -1
    model: str = ""


class Session(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One user task; the first branch is the main one. ``start`` (s from the recording's begin)
    is when it arrived, None where that is unknown. ``model`` may be empty: the replay says."""

    id: str
    branches: tuple[Branch, ...]
    model: str = ""
    agent: str = ""
    start: float | None = None

    @property
    def calls(self) -> int:
        return sum(len(branch.calls) for branch in self.branches)


class Trace(msgspec.Struct, frozen=True):
    """A whole workload. ``source`` says where it comes from. Very many requests are columns
    (``columns.Requests``), whose sessions are made when they are asked for."""

    source: str
    sessions: Sequence[Session]

    @property
    def calls(self) -> int:
        return sum(session.calls for session in self.sessions)


def stream_id(*parts: str | int, local: bool = False) -> int:
    """The number of the stream that these name: 62 bits, negative for a local one."""
    text = "\0".join(map(str, parts)).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2
    return -1 - number if local else number


def reply_stream(branch: str, index: int) -> int:
    """The stream of what call ``index`` of a branch drew; local to the session."""
    return stream_id("reply", branch, index, local=True)
