"""A call from its arrival to its end: attempts, and the legs of the present one.

An attempt is one try to serve what is left of the call, from the prompt and the tokens drawn so
far. A leg is the part of an attempt that one instance is charged with; today an attempt has one
leg, which computes the prompt and decodes. A leg has an id of its own on the wire and in the
router, so that a late message of an earlier attempt finds nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np
from msgspec.structs import replace

from alipes.gateway.calls.request import CallRequest
from alipes.gateway.routing.decision import CallShape
from alipes.gateway.routing.identity import Claim
from alipes.gateway.routing.paths import TokenPath
from alipes.gateway.routing.sessions import SessionCall
from alipes.instance.contract import Submit, chain_root


class Stage(Enum):
    """Where a call is: waiting for an instance, waiting before it asks for one again, sent to one,
    past the first token that came from there, or over."""

    QUEUED = auto()
    PAUSED = auto()
    SENT = auto()
    STREAMING = auto()
    ENDED = auto()


MOVES: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.QUEUED: frozenset({Stage.SENT, Stage.ENDED}),
    Stage.PAUSED: frozenset({Stage.QUEUED, Stage.ENDED}),
    Stage.SENT: frozenset({Stage.STREAMING, Stage.QUEUED, Stage.PAUSED, Stage.ENDED}),
    Stage.STREAMING: frozenset({Stage.QUEUED, Stage.PAUSED, Stage.ENDED}),
    Stage.ENDED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Call:
    """The handle that cancels the call. ``legs`` are those of the present attempt, of the last one
    once it has ended. Of the attempts since one has drawn a token, that one included, there are
    ``attempts``, and ``losses`` had begun and ended with the instance. ``deaths`` counts such
    losses over more tokens (see ``book``), of which ``lost_at`` had been drawn at the last one.
    ``drawn`` are the ids that its client has, of all attempts; ``cached_tokens`` of the prompt
    needed no computing in the attempt that drew the first of them. ``arrived`` and ``begun``, when
    an instance took it, are ns of the caller's clock, the latter 0 while unknown. ``kv_format`` is
    that of its model where it was last placed."""

    request: CallRequest
    session: SessionCall
    arrived: int
    stage: Stage = Stage.QUEUED
    legs: tuple[Leg, ...] = ()
    attempts: int = 0
    losses: int = 0
    deaths: int = 0
    lost_at: int = 0
    drawn: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    begun: int = 0
    kv_format: str = ""

    @property
    def done(self) -> bool:
        return self.stage is Stage.ENDED

    @property
    def instance(self) -> str:
        """Where the call is, empty while it waits."""
        return self.legs[0].instance if self.legs else ""

    @property
    def stop_id(self) -> int | None:
        """The drawn token that ends it, if there is one."""
        last = self.drawn[-1] if self.drawn else None
        return last if last in self.request.stop_ids else None

    @property
    def complete(self) -> bool:
        """Nothing is left to be drawn."""
        return self.stop_id is not None or len(self.drawn) >= self.request.max_tokens

    @property
    def claim(self) -> Claim:
        """What leads to the call's session and branch."""
        session = self.session
        return replace(self.request.claim, session=session.session, branch=session.name)

    def move(self, stage: Stage) -> None:
        """Raises ValueError for a move that is not in the table."""
        if stage not in MOVES[self.stage]:
            raise ValueError(f"a call that is {self.stage.name} cannot become {stage.name}")
        self.stage = stage

    def path(self) -> TokenPath:
        """Of the prompt and what has been drawn."""
        if not self.drawn:
            return self.session.path
        return self.session.path.followed_by(np.array(self.drawn, np.int32))


@dataclass(slots=True, eq=False)
class Leg:
    """``path`` is what an instance computes before it draws: the prompt and ``carried`` tokens of
    earlier attempts. ``instance`` is empty until one is found; ``kv_format`` is that of the model
    there; ``begun`` once it has told of the call."""

    call: Call
    id: bytes
    path: TokenPath
    carried: int
    instance: str = ""
    kv_format: str = ""
    begun: bool = False

    def shape(self) -> CallShape:
        """The leg as placement sees it."""
        request, session = self.call.request, self.call.session
        tokens = len(self.path.tokens)
        return CallShape(
            call_id=self.id,
            model=request.model,
            tenant=request.tenant,
            prompt_tokens=tokens,
            max_tokens=request.max_tokens - self.carried,
            branch=session.branch,
            known_tokens=tokens if self.carried else session.known_tokens,
            final=session.final,
            path=self.path,
            begun=self.call.attempts > 0,
        )

    def message(self) -> Submit:
        """The leg as its instance gets it."""
        request, session = self.call.request, self.call.session
        return Submit(
            call_id=self.id,
            model=request.model,
            root=chain_root(self.kv_format, request.tenant.encode()),
            tokens=self.path.tokens.astype("<i4", copy=False).tobytes(),
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_ids=request.stop_ids,
            forced=request.forced,
            branch=session.branch,
            continuation=session.continuation or self.carried > 0,
            final=session.final,
            keys=b"".join(self.path.keys(self.kv_format)),
            resumed=self.carried,
        )
