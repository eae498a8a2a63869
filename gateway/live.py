"""A call between ``submit`` and its last event, and what it is to router, instance and client."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from alipes.gateway.calls import CallFailure, CallRequest, FailureKind, Inbox
from alipes.gateway.routing.decision import CallShape, Reject, RejectKind
from alipes.gateway.routing.identity import Claim
from alipes.gateway.routing.sessions import SessionCall
from alipes.gateway.telemetry.recording import RecordedCall
from alipes.instance.contract import Failed, FailureClass, Submit, chain_root


class Stage(Enum):
    """Where a call is: waiting for an instance, sent to one, or past its first token."""

    QUEUED = auto()
    SENT = auto()
    STREAMING = auto()


@dataclass(slots=True, eq=False)
class LiveCall:
    """The handle that cancels the call; ``drawn`` are the ids of the present attempt. ``arrived``
    and ``begun``, when an instance took it, are readings of the clock, 0 while unknown."""

    request: CallRequest
    index: int
    inbox: Inbox
    session: SessionCall
    arrived: int
    call_id: bytes = b""
    stage: Stage = Stage.QUEUED
    instance: str = ""
    attempts: int = 0
    done: bool = False
    drawn: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    begun: int = 0

    @property
    def claim(self) -> Claim:
        """What leads to the call's session and branch."""
        session = self.session
        return replace(self.request.claim, session=session.session, branch=session.name)

    def shape(self) -> CallShape:
        """The call as placement sees it."""
        request, session = self.request, self.session
        return CallShape(
            call_id=self.call_id,
            model=request.model,
            tenant=request.tenant,
            prompt_tokens=len(request.tokens),
            max_tokens=request.max_tokens,
            branch=session.branch,
            known_tokens=session.known_tokens,
            final=session.final,
            path=session.path,
        )

    def message(self, kv_format: str) -> Submit:
        """The call as its instance gets it."""
        request, session = self.request, self.session
        return Submit(
            call_id=self.call_id,
            model=request.model,
            root=chain_root(kv_format, request.tenant.encode()),
            tokens=request.tokens.astype("<i4", copy=False).tobytes(),
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_ids=request.stop_ids,
            forced=request.forced,
            branch=session.branch,
            continuation=session.continuation,
            final=session.final,
            keys=b"".join(session.path.keys(kv_format)),
        )

    def recorded(self, kv_format: str, now: int) -> RecordedCall:
        """The call as a recording holds it, at its end."""
        request, session = self.request, self.session
        first = -(-session.kept_tokens // session.path.block_tokens)
        return RecordedCall(
            tenant=request.tenant,
            model=request.model,
            session=session.session,
            branch=session.branch,
            number=session.number,
            parent=session.origin,
            parent_calls=session.origin_calls,
            arrived=self.arrived,
            begun=self.begun or self.arrived,
            ended=now,
            prompt=len(request.tokens),
            kept=session.kept_tokens,
            drawn=self.drawn,
            stop_ids=request.stop_ids,
            keys=session.path.keys(kv_format)[first:],
            messages=request.messages,
        )


def failure_of(failed: Failed) -> CallFailure:
    return CallFailure(_KINDS[failed.failure], failed.reason, failed.field)


def refusal(reject: Reject) -> CallFailure:
    return CallFailure(_REJECTS[reject.kind], reject.reason, retry_after=reject.retry_after)


_KINDS: Final = {
    FailureClass.INVALID: FailureKind.INVALID,
    FailureClass.OVERLOADED: FailureKind.OVERLOADED,
    FailureClass.GONE: FailureKind.LOST,
    FailureClass.INTERNAL: FailureKind.INTERNAL,
}
_REJECTS: Final = {
    RejectKind.UNKNOWN_MODEL: FailureKind.UNAVAILABLE,
    RejectKind.TOO_LARGE: FailureKind.INVALID,
    RejectKind.DRAINING: FailureKind.UNAVAILABLE,
    RejectKind.OVERLOADED: FailureKind.OVERLOADED,
    RejectKind.TIMEOUT: FailureKind.TIMEOUT,
}
