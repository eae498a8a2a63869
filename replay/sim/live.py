"""A simulated call between its client's send and its end, and the content of its session."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from alipes.gateway.routing.decision import CallShape
from alipes.gateway.routing.sessions import SessionCall
from alipes.instance.contract import Finished, Submit, TokenIds, chain_root
from alipes.replay.pacing import Send
from alipes.replay.records import CallRecord
from alipes.replay.sim.clock import SimulationError
from alipes.replay.sim.timeline import CallTimes, Latency, parts_of
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import Branch, Call, Session

TENANT: Final = "simulated"
NANOSECONDS_LOST: Final = 1e-6
"""Seconds by which the parts of a call may miss its latency, for they are floats."""
_NOTHING: Final = np.empty(0, np.int32)


class SessionContent:
    """Token ids of one session: what the last call of each branch left, and what sub-agents go on
    from."""

    def __init__(self, session: Session, vocabulary: Vocabulary) -> None:
        self._content = Content(session.id, vocabulary)
        self._spawning = {(b.parent, b.spawned_by) for b in session.branches[1:]}
        self._last: dict[str, TokenIds] = {}
        self._forks: dict[tuple[str, int], TokenIds] = {}

    def prompt(self, branch: Branch, index: int) -> TokenIds:
        """(call.prompt,) int32"""
        before = (
            self._last[branch.name]
            if index
            else self._forks.get((branch.parent, branch.spawned_by), _NOTHING)
        )
        return self._content.prompt(branch.calls[index], before)

    def reply(self, branch: Branch, index: int) -> TokenIds:
        """(call.output,) int32"""
        return self._content.reply(branch.name, index, branch.calls[index].output)

    def remember(self, branch: Branch, index: int, context: TokenIds) -> None:
        """The call leaves ``context`` to the next of its branch, and to those that it spawned."""
        self._last[branch.name] = context
        if (branch.name, index) in self._spawning:
            self._forks[branch.name, index] = context


@dataclass(slots=True)
class LiveCall:
    """Instants in ns."""

    send: Send
    session_id: str
    branch: Branch
    call: Call
    model: str
    prompt: TokenIds
    reply: TokenIds
    begun: SessionCall
    call_id: bytes
    sent: int
    returning: bool
    warmup: bool
    placed: int = 0
    instance: str = ""
    placement: str = ""

    def context(self) -> TokenIds:
        """What the call leaves: its prompt and its reply."""
        return np.concatenate((self.prompt, self.reply))

    def shape(self) -> CallShape:
        """The call as placement sees it."""
        return CallShape(
            call_id=self.call_id,
            model=self.model,
            tenant=TENANT,
            prompt_tokens=len(self.prompt),
            max_tokens=self.call.output,
            branch=self.begun.branch,
            known_tokens=self.begun.known_tokens,
            final=self.begun.final,
            path=self.begun.path,
        )

    def submit(self, kv_format: str) -> Submit:
        """The call as its instance gets it."""
        begun = self.begun
        return Submit(
            call_id=self.call_id,
            model=self.model,
            root=chain_root(kv_format, TENANT.encode()),
            tokens=self.prompt.tobytes(),
            max_tokens=self.call.output,
            forced=self.reply.tobytes(),
            branch=begun.branch,
            continuation=begun.continuation,
            final=begun.final,
            keys=b"".join(begun.path.keys(kv_format)),
        )

    # --- records ---------------------------------------------------------------------------------

    def failed(self, reason: str, now: int) -> CallRecord:
        return replace(self._record(now), error=reason)

    def finished(
        self, finished: Finished, times: CallTimes, now: int, gateway_ns: int
    ) -> CallRecord:
        """The call's client has the end ``gateway_ns`` after the instance told it, at ``now``."""
        intended, end, drawn = self.send.intended, now + gateway_ns, finished.completion_tokens
        first = now if times.first_token is None else times.first_token
        first += gateway_ns
        computed = finished.prompt_tokens - finished.cached_tokens
        latency = Latency(
            intended=intended,
            sent=self.sent,
            placed=self.placed + gateway_ns,
            ended=end,
            prefill=round(finished.prefill * 1e9),
            computed=computed,
            recomputed=max(0, min(self.begun.known_tokens - finished.cached_tokens, computed)),
        )
        return replace(
            self._record(end),
            ttft=(first - intended) / 1e9,
            tpot=(end - first) / 1e9 / (drawn - 1) if drawn > 1 else None,
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=finished.cached_tokens,
            completion_tokens=drawn,
            finish_reason=finished.reason.value,
            restored_tokens=finished.restored_tokens,
            phase=times.phase,
            parts=parts_of(latency, times),
        )

    def _record(self, end: int) -> CallRecord:
        send = self.send
        return CallRecord(
            session=self.session_id,
            request_id=f"{self.session_id}.{self.branch.name}.{send.index}",
            model=self.model,
            index=send.index,
            gap=send.gap / 1e9,
            intended=send.intended / 1e9,
            sent=self.sent / 1e9,
            finished=end / 1e9,
            expected_tokens=self.call.output,
            instance=self.instance,
            placement=self.placement,
            # Encoded without the default itself, but with a text that is equal to it.
            branch=sys.intern(self.branch.name),
            returning=self.returning,
            warmup=self.warmup,
        )

    def check(self, record: CallRecord) -> None:
        """All tokens were drawn, none was found that was not asked for, and the seconds add up.
        Raises ``SimulationError``."""
        asked, cached = len(self.prompt), record.cached_tokens
        if record.completion_tokens != self.call.output or record.prompt_tokens != asked:
            raise SimulationError(f"{record} was to be {asked} + {self.call.output} tokens")
        if cached is None or not 0 <= cached < asked:
            raise SimulationError(f"{cached} of {asked} tokens were cached: {record}")
        parts = msgspec.structs.astuple(record.parts) if record.parts is not None else ()
        seconds = record.finished - record.intended
        if min(parts, default=-1.0) < 0 or abs(sum(parts) - seconds) > NANOSECONDS_LOST:
            raise SimulationError(f"{parts} are not the {seconds} s of {record}")
