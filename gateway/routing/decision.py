"""What goes into the router and what comes out of it: frozen, and readable as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from alipes.gateway.routing.leases import LeaseCounts

Policy = Literal["residency", "least-pressure", "session-sticky", "cache-aware"]


class RouterSettings(msgspec.Struct, frozen=True):
    """Bounds of placement, in seconds. An instance's state counts for ``state_seconds``; after
    ``silence_seconds`` without a sign of life it has missed its beats. ``queue_depth`` bounds
    the calls that wait in this gateway, ``queue_timeout`` how long each does. ``lease_seconds``
    is tau of Talaria 3.3, 0 for no leases. ``policy`` ranks the instances that have room: by Eq. 1
    and Eq. 2, or as one of the ``baselines``. A further replica (Eq. 2) must gain more over
    ``control_window`` than it costs with ``replica_penalty`` (nu) on top. A session returns to an
    instance with an old state or missed beats once that has been heard of again, within
    ``check_seconds``. With ``eviction_cost`` Eq. 1 counts what KV a call pushes out."""

    queue_depth: int = 256
    queue_timeout: float = 120.0
    state_seconds: float = 5.0
    silence_seconds: float = 3.0
    lease_seconds: float = 1.0
    policy: Policy = "residency"
    control_window: float = 10.0
    replica_penalty: float = 0.1
    check_seconds: float = 1.0
    eviction_cost: bool = True


class BlockPath(Protocol):
    """The chained block keys of a prompt, on demand."""

    def keys(self, kv_format: str) -> Sequence[bytes]:
        """Keys of all full blocks of the prompt for instances of this KV format; computed at
        most once for each format."""
        ...


class CallShape(msgspec.Struct, frozen=True):
    """One call as placement sees it. ``branch`` identifies a context of a session on this model
    over its calls (16 opaque bytes; empty when unknown): leases go by it. The first
    ``known_tokens`` of the prompt were in an earlier call of the branch, so that computing them
    again is recovery. ``final`` tells that no further call is to be expected. Without a ``path``
    nothing is known of where the prompt's KV is. ``begun``: an instance had begun with the call
    and was lost; its client has a part of the answer, so that it goes before others where it has
    to wait, and is not refused for a full queue."""

    call_id: bytes
    model: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    branch: bytes = b""
    known_tokens: int = 0
    final: bool = False
    path: BlockPath | None = None
    begun: bool = False


class Completion(msgspec.Struct, frozen=True):
    """What the router learns from a call that finished; see ``contract.Finished``."""

    completion_tokens: int
    prefix: bytes = b""
    prefix_tokens: int = 0


class Why(StrEnum):
    """Why a candidate could take the call, or why not."""

    OK = "ok"
    DOWN = "down"
    SILENT = "silent"
    DRAINING = "draining"
    NO_STATE = "no-state"
    STALE = "stale"
    NO_ESTIMATE = "no-estimate"
    NO_GAIN = "no-gain"
    TOO_SMALL = "too-small"
    FULL = "full"
    MEMORY = "memory"
    ROUND = "round"

    @property
    def busy(self) -> bool:
        """The instance is well and serves the model; it has no room for this call now."""
        return self in (Why.FULL, Why.MEMORY, Why.ROUND)

    @property
    def can_wait_there(self) -> bool:
        """The instance would take the call and serve it in its turn, if later than it should."""
        return self in (Why.MEMORY, Why.ROUND)


class Candidate(msgspec.Struct, frozen=True):
    """One instance's predicted cost of one call, Talaria Eq. 1, in seconds. ``queue``,
    ``prefill`` and ``decode`` are the incremental work (with the delay to running decode),
    ``recovery`` is that of the KV prefix, ``activation`` that of the model, ``eviction`` that of
    other KV which makes room; ``total`` is their sum. ``round_length`` is the predicted round with
    the call in it. Of the prompt, ``device_tokens`` and ``host_tokens`` are there and in which
    tier; ``room`` tokens fit there before other KV has to go. ``opens``: the instance
    is cold and its model neither active nor with work, so that the call must open it; ``no-gain``
    is a further replica that fails Eq. 2. Without a state to predict from, all costs are 0 and
    ``why`` says so."""

    instance: str
    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    recovery: float = 0.0
    activation: float = 0.0
    eviction: float = 0.0
    total: float = 0.0
    round_length: float = 0.0
    device_tokens: int = 0
    host_tokens: int = 0
    room: int = 0
    opens: bool = False
    admitted: bool = False
    why: Why = Why.OK


class Reason(StrEnum):
    """Why a call went where it went, or waits."""

    LEASE = "lease"
    ONLY = "only"
    ACTIVE = "active"
    SWITCH = "switch"
    LEAST_COST = "least-cost"
    SPILL = "spill"
    OVERDUE = "overdue"
    NO_INSTANCE = "no-instance"
    BUSY = "busy"
    BEHIND = "behind"
    CHECK = "check"


class Placement(msgspec.Struct, frozen=True):
    """``lease``: the place held for the session's return was still good. ``only``: no other
    instance serves the model. ``spill``: a cheaper one had no room.
    ``switch``: the model must be made active there. ``active``: it alone has the model
    active. ``least-cost``: several have, and it is the cheapest. ``overdue``: no queued call of its
    model had gone for as long as a round may last."""

    call_id: bytes
    instance: str
    reason: Reason
    candidates: tuple[Candidate, ...]


class Wait(msgspec.Struct, frozen=True):
    """The call is queued here; ``Router.retry`` will place or reject it. With ``probe`` the driver
    is to ask the instance of this name for a sign of life (``Ping``): the call's session holds a
    place there."""

    call_id: bytes
    reason: Reason
    candidates: tuple[Candidate, ...]
    probe: str = ""


class RejectKind(StrEnum):
    UNKNOWN_MODEL = "unknown-model"
    TOO_LARGE = "too-large"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    TIMEOUT = "queue-timeout"


class Reject(msgspec.Struct, frozen=True):
    """The call will not be served; ``retry_after`` (seconds) is 0 where trying again is
    pointless."""

    call_id: bytes
    kind: RejectKind
    reason: str
    retry_after: float = 0.0


class InstanceStatus(msgspec.Struct, frozen=True):
    """``why`` is ``ok`` when the instance may get new calls. ``age`` (seconds) is that of its
    state, -1 before the first. ``placed`` calls are there now, ``unseen`` of them too recent
    for its state to show."""

    name: str
    why: Why
    age: float
    active_model: str
    phase: str
    placed: int
    unseen: int


class RouterCounts(msgspec.Struct, frozen=True):
    """Totals since start. ``opens`` are placements that made their instance open the model,
    ``avoidable_opens`` those of them while another that could be used had it active (Talaria
    5.3). ``returns`` are calls of a branch that has finished one before, ``same_instance`` those
    of them that went to the instance of the last one."""

    placed: int = 0
    opens: int = 0
    avoidable_opens: int = 0
    returns: int = 0
    same_instance: int = 0


class LateModel(msgspec.Struct, frozen=True):
    """A model of which no queued call has gone for longer than a round may last: ``waited``
    seconds since one went, or since the oldest of the ``waiting`` calls came. ``why`` tells of
    each instance that serves the model what keeps the next call away."""

    model: str
    waiting: int
    waited: float
    why: dict[str, Why]


class RouterStatus(msgspec.Struct, frozen=True):
    """``models`` tells for each model whether an instance can take calls for it now; ``ready``
    whether that holds for all. ``queued`` counts the calls that wait, by model; ``late`` are those
    models whose calls wait for longer than they should."""

    ready: bool
    models: dict[str, bool]
    queued: dict[str, int]
    instances: tuple[InstanceStatus, ...]
    counts: RouterCounts = RouterCounts()
    leases: LeaseCounts = LeaseCounts()
    late: tuple[LateModel, ...] = ()
