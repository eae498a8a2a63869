"""What a client asks for, one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from alipes.gateway.conversation.message import Message
from alipes.gateway.routing.identity import NO_CLAIM, Claim
from alipes.instance.contract import Sampling, TokenIds


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One sequence to generate: ``tokens`` (n,) int32 is the whole prompt, ``forced`` int32
    little-endian ids that replace draws. ``sampling.seed`` is set. ``claim`` is what the client
    says of its session, whose next prompt begins with the first ``stem`` ids of this one.
    ``messages`` are those that the prompt was made of, if it was. With ``shortens`` it draws fewer
    tokens where no instance has room for so many."""

    model: str
    tenant: str
    tokens: TokenIds
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    forced: bytes = b""
    claim: Claim = NO_CLAIM
    stem: int = 0
    messages: Sequence[Message] | None = None
    shortens: bool = False
