"""What happens to a call, and what the book wants done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from alipes.gateway.routing.decision import Placement, Reject, RejectKind
from alipes.instance.contract import Drawn, Failed, FailureClass, Finished, Started, ToInstance

if TYPE_CHECKING:
    from alipes.gateway.calls.call import Call


class FailureKind(StrEnum):
    """Why a call ended without finishing: the request is wrong, nobody has room, it waited too
    long, its model has no instance, its instances died again and again, a defect, or a shutdown."""

    INVALID = "invalid"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    INTERNAL = "internal"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The last event of a call that cannot finish; ``retry_after`` in seconds, 0 for none."""

    kind: FailureKind
    reason: str
    field: str = ""
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """The call has left ``instance``, which was lost or refused it. It goes on elsewhere from the
    ``drawn`` tokens that its client has: those stay as they are."""

    instance: str
    drawn: int


@dataclass(frozen=True, slots=True)
class Satisfied:
    """The client has all it wants of the call, which counts as finished."""


CallEvent = Placement | Moved | Started | Drawn | Finished | Satisfied | CallFailure


@dataclass(frozen=True, slots=True)
class Send:
    """A message for an instance. Where it cannot be sent, the book is told (``unsent``)."""

    instance: str
    message: ToInstance


@dataclass(frozen=True, slots=True)
class Update:
    """``event`` happened to ``call``: for its client, and for whoever watches."""

    call: Call
    event: CallEvent


Output = Send | Update


def failure_of(failed: Failed) -> CallFailure:
    """What an instance says of a call that it could not serve."""
    return CallFailure(_KINDS[failed.failure], failed.reason, failed.field)


def refusal(reject: Reject) -> CallFailure:
    """What the router says of a call that will not be served."""
    return CallFailure(_REJECTS[reject.kind], reject.reason, retry_after=reject.retry_after)


_KINDS: Final = {
    FailureClass.INVALID: FailureKind.INVALID,
    FailureClass.OVERLOADED: FailureKind.OVERLOADED,
    FailureClass.GONE: FailureKind.LOST,
    FailureClass.BROKEN: FailureKind.LOST,
    FailureClass.INTERNAL: FailureKind.INTERNAL,
}
_REJECTS: Final = {
    RejectKind.UNKNOWN_MODEL: FailureKind.UNAVAILABLE,
    RejectKind.TOO_LARGE: FailureKind.INVALID,
    RejectKind.DRAINING: FailureKind.UNAVAILABLE,
    RejectKind.OVERLOADED: FailureKind.OVERLOADED,
    RejectKind.TIMEOUT: FailureKind.TIMEOUT,
}
