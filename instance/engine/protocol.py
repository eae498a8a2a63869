"""What an engine is: the half of an instance that computes, with no policy in it.

An engine holds one active model at a time. It is driven by one thread. All its state about a
call is in what the scheduler passes: rows name the tokens, the block table and, where a token
is to be drawn, all that the draw depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from alipes.instance.contract import MemoryMap, ModelReport, Sampling, TokenIds, TopLogprob


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw one token after the row's last. ``history`` is prompt and output so far, (n,) int32,
    with ``prompt_tokens`` of it prompt; the position of the new token is n. ``forced`` replaces
    the draw but keeps its logprobs."""

    sampling: Sampling
    history: TokenIds
    prompt_tokens: int
    forced: int | None = None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What a row does with the recurrent state of its call, by slot: it goes on from ``load``, from
    nothing where that is None, and leaves the state after its last token in ``save``, which may be
    the same. The state after its first ``kept`` tokens is left in ``keep`` too, where given."""

    load: int | None
    save: int
    keep: int | None = None
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Compute ``tokens`` (n,) int32 at positions start .. start + n - 1 of one call. ``blocks``
    covers positions 0 .. start + n - 1; those before ``start`` hold valid state. ``recurrence`` is
    given for models with slots alone."""

    call_id: bytes
    tokens: TokenIds
    start: int
    blocks: Sequence[int]
    draw: Draw | None
    recurrence: Recurrence | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    call_id: bytes
    token: int
    logprob: float | None = None
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class HostSlabs:
    """The host memory for KV of all models: ``count`` slabs of ``slab_bytes`` each. One block of
    a model takes as many as its report says (``block_slabs``), one slot ``slot_bytes /
    slab_bytes``, which need not be neighbours: the bytes of its layers, first to last, fill them
    in their order."""

    slab_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One whole device block of the active model and the slabs of its host copy. The slots of a
    model are counted on from its blocks: slot s is device block ``kv_blocks + s``."""

    device: int
    slabs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """A copy to the host has ended. All ranks hold its first ``intact`` blocks, as they were on the
    device; all of it where that is None. Nothing is known of the others."""

    ticket: int
    intact: int | None = None


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """What making a model active took; ``addresses_kept`` tells whether every region of the
    arena is where it was when the model was last active. ``path`` says where its weights came
    from: ``h2d``, ``partial``, ``d2d`` or ``remap``. So many bytes were copied from the host and
    within the device; ``mapped_bytes`` changed places without a copy. Without any bytes the model
    was active already."""

    seconds: float = 0.0
    addresses_kept: bool = True
    path: str = "h2d"
    h2d_bytes: int = 0
    d2d_bytes: int = 0
    mapped_bytes: int = 0

    @property
    def on_device_bytes(self) -> int:
        """Those that the device held already."""
        return self.d2d_bytes + self.mapped_bytes


@dataclass(frozen=True, slots=True)
class Staged:
    """What a switch would find on the device: of each model that is not active, so many bytes of
    its weights. ``target`` is the one that is being staged, for which ``slack_bytes`` more could
    be used."""

    target: str = ""
    covered: Mapping[str, int] = field(default_factory=dict)
    slack_bytes: int = 0

    @property
    def covered_bytes(self) -> int:
        """Of the model that is being staged."""
        return self.covered.get(self.target, 0)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an operator may want to know of an engine and nobody decides by: who has which bytes,
    and for every operation the variant of its kernel."""

    memory: MemoryMap
    kernels: Mapping[str, str]


class Engine(Protocol):
    """Raises ``EngineError`` on a request it cannot serve; anything else is a defect."""

    @property
    def kind(self) -> str: ...

    @property
    def reports(self) -> tuple[ModelReport, ...]: ...

    @property
    def host(self) -> HostSlabs: ...

    @property
    def about(self) -> EngineFacts: ...

    def activate(self, model: str) -> SwitchReport:
        """Make ``model`` the active one; device blocks of the previous one are void after it.
        Raises ``EngineError`` while copies are under way: drain first."""
        ...

    def stage(self, following: str | None, rows: int) -> Staged:
        """To be called now and then while a model is active: its block rows from ``rows`` on hold
        nothing that is needed, and ``following`` is to be active next, as far as anybody knows.
        An engine may bring weights of that model to those rows; rows that it is asked to write
        later are safe whether or not this is called."""
        ...

    def expect(self, model: str, grammar: str) -> None:
        """A call of ``model`` has come that is to be drawn under ``grammar``: it may be prepared
        for, beside all else. Nothing is wrong if this is never called."""
        ...

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        """One forward pass over all rows; results in the order of the rows that draw."""
        ...

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        """Begin to copy these device blocks to the host. Until ``ticket`` is reported neither
        side may be written, and the slabs may not be read. Tickets rise."""
        ...

    def copied(self) -> tuple[CopyEnd, ...]:
        """Copies that have ended since this was last asked, in order; never waits."""
        ...

    def drain(self) -> tuple[CopyEnd, ...]:
        """As ``copied``, but waits for all copies that were begun."""
        ...

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        """Copy slabs to device blocks; the next step sees them there."""
        ...

    def close(self) -> None: ...


class EngineError(Exception):
    """The engine refuses; the message says which object and what to do. ``call_ids`` names the
    rows at fault in a step; empty means all of them. A refused step leaves the others' state
    as it was."""

    def __init__(self, message: str, call_ids: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.call_ids = call_ids
