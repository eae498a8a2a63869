"""Who a call belongs to: the session and the branch that its client names."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Source(StrEnum):
    """What told the session, in the order of precedence."""

    OWN = "own-header"
    AGENT = "agent-header"
    BODY = "body"
    CACHE_KEY = "prompt-cache-key"
    RESPONSE = "previous-response"
    PREFIX = "prefix"
    NEW = "new"


class Claim(msgspec.Struct, frozen=True):
    """What a request says of its session; ids are the client's, within one tenant. Without a
    ``session`` it is the one whose last prompt is the longest beginning of this one, or a new
    one. ``branch`` and ``parent`` name contexts inside the session, empty for the main one.
    A ``weak`` session id comes from where others put an id of the single request: an unknown one
    counts only where the prompt continues no session."""

    session: str = ""
    branch: str = ""
    parent: str = ""
    final: bool = False
    source: Source = Source.NEW
    weak: bool = False


NO_CLAIM: Final = Claim()
