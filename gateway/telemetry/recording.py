"""Finished calls as lines of a recording that can be replayed; sans-IO.

Names of sessions and branches and the keys of blocks are hashed under a key that is never written:
equal content has equal hashes within one recording, and nothing else can be told from them. Text
is only there where it was asked for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from alipes.gateway.calls.call import Call
from alipes.gateway.conversation.message import shown
from alipes.instance.contract import BLOCK_TOKENS

VERSION: Final = 1
HASH_BYTES: Final = 8
BRANCHES_KEPT: Final = 4096
SECOND: Final = 1_000_000_000

Decode = Callable[[str, Sequence[int]], str]
"""The text of token ids under a model."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that finished. ``branch`` is its id, ``parent`` that of the branch it began from,
    empty if there is none. The first ``kept`` tokens of the prompt are those of the context before
    it: of its branch, or for the first call of a branch of its parent. ``number`` calls of the
    branch had finished before, ``parent_calls`` of the parent. ``keys`` has the chain keys
    of the prompt's full blocks that begin after those, ``messages`` what the client sent where it
    sent messages. Instants are nanoseconds of the gateway's clock."""

    tenant: str
    model: str
    session: str
    branch: bytes
    number: int
    parent: bytes
    parent_calls: int
    arrived: int
    begun: int
    ended: int
    prompt: int
    kept: int
    drawn: Sequence[int]
    stop_ids: Sequence[int]
    keys: Sequence[bytes]
    messages: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, call: Call, now: int) -> RecordedCall:
        """The call at its end."""
        request, session = call.request, call.session
        first = -(-session.kept_tokens // session.path.block_tokens)
        said = request.messages
        return cls(
            tenant=request.tenant,
            model=request.model,
            session=session.session,
            branch=session.branch,
            number=session.number,
            parent=session.origin,
            parent_calls=session.origin_calls,
            arrived=call.arrived,
            begun=call.begun or call.arrived,
            ended=now,
            prompt=len(request.tokens),
            kept=session.kept_tokens,
            drawn=call.drawn,
            stop_ids=request.stop_ids,
            keys=session.path.keys(call.kv_format)[first:],
            messages=None if said is None else list(map(shown, said)),
        )


class Header(msgspec.Struct, frozen=True, tag_field="kind", tag="recording"):
    """The first line. ``began`` is the calendar time of instant 0, in seconds."""

    version: int
    began: float
    block_tokens: int


class Messages(msgspec.Struct, frozen=True):
    """The first ``kept`` messages are those of the branch's last prompt."""

    kept: int
    added: list[Any]
    reply: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="call"):
    """One call, the ``number``th of its branch that finished, from 0. Instants are seconds since
    the recording began, lengths are in tokens; ``blocks`` has 16 hex digits for each full block of
    the prompt that begins after the ``kept`` tokens."""

    session: str
    branch: str
    number: int
    model: str
    arrived: float
    begun: float
    ended: float
    prompt: int
    output: int
    kept: int = 0
    parent: str = ""
    parent_calls: int = 0
    blocks: str = ""
    messages: Messages | None = None


class Recording:
    """``key`` is random. ``decode`` is given where text is to be recorded."""

    def __init__(self, key: bytes, now: int, decode: Decode | None = None) -> None:
        self._key = key
        self._began = now
        self._decode = decode
        self._shown: OrderedDict[bytes, list[bytes]] = OrderedDict()

    @staticmethod
    def header(calendar: float) -> bytes:
        return msgspec.json.encode(Header(VERSION, calendar, BLOCK_TOKENS)) + b"\n"

    def line(self, call: RecordedCall) -> bytes:
        """Calls of one branch are to come in their order."""
        line = Line(
            session=self._hash(b"session", call.tenant.encode(), call.session.encode()),
            branch=self._hash(b"branch", call.branch),
            number=call.number,
            model=call.model,
            arrived=self._seconds(call.arrived),
            begun=self._seconds(call.begun),
            ended=self._seconds(call.ended),
            prompt=call.prompt,
            output=len(call.drawn),
            kept=call.kept,
            parent=self._hash(b"branch", call.parent) if call.parent else "",
            parent_calls=call.parent_calls,
            blocks="".join(self._hash(b"block", key) for key in call.keys),
            messages=self._messages(call),
        )
        return msgspec.json.encode(line) + b"\n"

    def _hash(self, kind: bytes, *parts: bytes) -> str:
        digest = hashlib.blake2b(key=self._key, digest_size=HASH_BYTES, person=kind)
        for part in parts:
            digest.update(len(part).to_bytes(4, "little"))
            digest.update(part)
        return digest.hexdigest()

    def _seconds(self, instant: int) -> float:
        return (instant - self._began) / SECOND

    def _messages(self, call: RecordedCall) -> Messages | None:
        """What is new of them since the branch's last prompt, as far as that is remembered."""
        if self._decode is None or call.messages is None:
            return None
        encoded = [msgspec.json.encode(message, order="deterministic") for message in call.messages]
        known = [hashlib.blake2b(one, digest_size=HASH_BYTES).digest() for one in encoded]
        before = self._shown.pop(call.branch, [])
        kept = 0
        while kept < min(len(before), len(known)) and before[kept] == known[kept]:
            kept += 1
        self._shown[call.branch] = known
        while len(self._shown) > BRANCHES_KEPT:
            self._shown.popitem(last=False)
        stops = frozenset(call.stop_ids)
        reply = self._decode(call.model, [token for token in call.drawn if token not in stops])
        return Messages(kept, [msgspec.Raw(one) for one in encoded[kept:]], reply)
