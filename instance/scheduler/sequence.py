"""One call inside an instance: its tokens, its blocks, where it is in its life."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Final

import numpy as np

from alipes.instance.contract import KEY_BYTES, FinishReason, Submit, TokenIds, chain_keys
from alipes.instance.engine.protocol import Draw, Recurrence, Row
from alipes.instance.memory.prefix import matchable_blocks
from alipes.instance.memory.rows import HostBlock

KEYS_AHEAD: Final = 64


def given_keys(call: Submit, block_tokens: int) -> list[bytes]:
    """The block keys that came with a call; [] unless there is one for each full block and the last
    follows from the one before."""
    tokens = np.frombuffer(call.tokens, dtype="<i4")
    full = len(tokens) // block_tokens
    if not full or len(call.keys) != full * KEY_BYTES:
        return []
    keys: list[bytes] = np.frombuffer(call.keys, dtype=f"V{KEY_BYTES}").tolist()
    before = keys[-2] if full > 1 else call.root
    last = tokens[(full - 1) * block_tokens : full * block_tokens]
    return keys if chain_keys(before, last, block_tokens) == keys[-1:] else []


class CallState(StrEnum):
    """Where a call is. ``PREFILL`` and ``DECODE`` hold device blocks, ``SAVED`` host blocks."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    SAVED = "saved"
    ENDED = "ended"


MOVES: Final[dict[CallState, frozenset[CallState]]] = {
    CallState.WAITING: frozenset({CallState.PREFILL, CallState.ENDED}),
    CallState.PREFILL: frozenset(
        {CallState.DECODE, CallState.SAVED, CallState.WAITING, CallState.ENDED}
    ),
    CallState.DECODE: frozenset({CallState.SAVED, CallState.WAITING, CallState.ENDED}),
    CallState.SAVED: frozenset(
        {CallState.PREFILL, CallState.DECODE, CallState.WAITING, CallState.ENDED}
    ),
    CallState.ENDED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """``history[:length]`` is prompt and output, which begins with what an earlier attempt drew
    elsewhere; the first ``computed`` positions have valid state in ``blocks`` (or in the host
    blocks ``saved``); the first ``published`` blocks have been offered to the prefix index.
    ``order`` is the call's age, the oldest lowest; ``turn`` is that of its prompt (``turns.py``),
    lowest first. While it waits, ``known`` tokens are expected to need no computing, ``known_host``
    of them from the host; ``recompute`` tells that the host failed to give them. ``parked`` is the
    turn of the slot that parked it last, ``aged`` tells that it lacked blocks once. ``on_host`` are
    the blocks that the host had of its beginning when it was last asked. Times in ns.

    The recurrent state of a resident call is in ``slot``, or still in ``origin`` that it continues
    from and does not own; ``mark`` is for its state at the next block boundary, ``marked`` the
    number of blocks at the last. That of a saved call is in ``saved_slot``. ``parting`` is the
    number of blocks that others' prompts began with too, where no state was kept after them; 0
    without any. ``anchors`` maps a number of blocks to the slot with the state after them, which
    the call holds for those that come later."""

    call: Submit
    arrived: int
    order: tuple[int, int]
    prompt_tokens: int
    history: TokenIds
    forced: TokenIds
    stops: frozenset[int]
    length: int
    turn: tuple[int, int]
    state: CallState = CallState.WAITING
    computed: int = 0
    published: int = 0
    known: int = 0
    known_host: int = 0
    recompute: bool = False
    cached_tokens: int = 0
    restored_tokens: int = 0
    parked: int = 0
    aged: bool = False
    blocks: list[int] = field(default_factory=list)
    saved: list[HostBlock] = field(default_factory=list)
    slot: int | None = None
    origin: int | None = None
    mark: int | None = None
    marked: int = 0
    saved_slot: HostBlock | None = None
    parting: int = 0
    anchors: dict[int, int] = field(default_factory=dict)
    on_host: list[HostBlock] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    started: int | None = None
    first_token: int | None = None
    prefill_seconds: float = 0.0

    @classmethod
    def of(cls, call: Submit, now: int, order: tuple[int, int]) -> Sequence:
        tokens = np.frombuffer(call.tokens, dtype="<i4")
        return cls(
            call=call,
            arrived=now,
            order=order,
            prompt_tokens=len(tokens) - call.resumed,
            history=tokens,
            forced=np.frombuffer(call.forced, dtype="<i4"),
            stops=frozenset(call.stop_ids),
            length=len(tokens),
            turn=order,
        )

    @property
    def generated(self) -> int:
        return self.length - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that may still be drawn."""
        return self.call.max_tokens - self.generated

    @property
    def pending(self) -> int:
        """Tokens still to be computed before the next one can be drawn."""
        return self.length - self.computed

    def move(self, state: CallState) -> None:
        if state not in MOVES[self.state]:
            raise ValueError(f"a {self.state} call cannot become {state}")
        self.state = state

    @property
    def state_slot(self) -> int | None:
        """Where the recurrent state after what is computed is now."""
        return self.slot if self.origin is None else self.origin

    def stretch(self, block_tokens: int) -> int:
        """Tokens that may be computed at once: pending ones, up to where prompts part."""
        part = self.parting * block_tokens
        return part - self.computed if self.computed < part else self.pending

    def is_anchor(self, blocks: int, block_tokens: int) -> bool:
        """Whether those with the same beginning, or the same prompt again, go on from here."""
        return blocks in (self.parting, matchable_blocks(self.prompt_tokens, block_tokens))

    def boundary(self, start: int, end: int, block_tokens: int) -> int:
        """The number of blocks after which the state is kept when positions start .. end - 1 are
        computed, 0 where they complete none: the last one that the prompt could be taken from the
        cache up to, where that is among them, else the last one."""
        usable, last = matchable_blocks(self.prompt_tokens, block_tokens), end // block_tokens
        blocks = usable if start < usable * block_tokens <= end else last
        return blocks if blocks * block_tokens > start else 0

    def leave_device(self) -> None:
        """What it had there is void, or was given back."""
        self.blocks = []
        self.published = 0
        self.slot = self.origin = self.mark = None
        self.marked = 0
        self.anchors = {}

    def start(self, now: int) -> None:
        """Make room for all of the output; from here on ``history`` is written in place."""
        history = np.empty(self.prompt_tokens + self.call.max_tokens, dtype=np.int32)
        history[: self.length] = self.history
        self.history = history
        self.started = now

    def extend_path(self, blocks: int, block_tokens: int) -> list[bytes]:
        """Keys of at least the first ``blocks`` blocks, each computed once."""
        keys = self.keys
        if len(keys) < blocks:
            parent = keys[-1] if keys else self.call.root
            rest = self.history[len(keys) * block_tokens : blocks * block_tokens]
            keys.extend(chain_keys(parent, rest, block_tokens))
        return keys

    def path(self, blocks: int, block_tokens: int, first: int = 0) -> Iterator[bytes]:
        """The keys from ``first``, before ``blocks``; those not known are computed as they are
        read, some ahead."""
        known = min(len(self.keys), blocks)
        ahead = self._compute(max(first, known), blocks, block_tokens)
        return chain(self.keys[first:known], ahead)

    def _compute(self, first: int, blocks: int, block_tokens: int) -> Iterator[bytes]:
        for index in range(first, blocks):
            if index >= len(self.keys):
                self.extend_path(min(index + KEYS_AHEAD, blocks), block_tokens)
            yield self.keys[index]

    def row(self, tokens: int, block_tokens: int) -> Row:
        """Compute the next ``tokens`` positions, and draw when they reach the end."""
        start = self.computed
        end = start + tokens
        draw = None
        if end == self.length:
            at = self.generated
            draw = Draw(
                sampling=self.call.sampling,
                history=self.history[:end],
                prompt_tokens=self.prompt_tokens,
                forced=int(self.forced[at]) if at < len(self.forced) else None,
            )
        recurrence = self._recurrence(start, end, block_tokens)
        tokens_in = self.history[start:end]
        return Row(self.call.call_id, tokens_in, start, self.blocks, draw, recurrence)

    def _recurrence(self, start: int, end: int, block_tokens: int) -> Recurrence | None:
        if self.slot is None:
            return None
        blocks = self.boundary(start, end, block_tokens)
        keep = self.mark if blocks else None
        kept = blocks * block_tokens - start if keep is not None else 0
        return Recurrence(self.state_slot if start else None, self.slot, keep, kept)

    def append(self, token: int, now: int) -> FinishReason | None:
        """Take a drawn token; says why the call ends, if it does."""
        self.history[self.length] = token
        self.length += 1
        if self.first_token is None:
            self.first_token = now
        if token in self.stops:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.remaining == 0 else None
