"""A simulated call between its client's send and its end, and the content of its session."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from alipes.gateway.calls.call import Leg
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.routing.identity import Claim
from alipes.instance.contract import Finished, TokenIds
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
class SimulatedCall:
    """A call beside what the book knows of it: its place in the trace, what it is to answer, and
    how it fares. Instants in ns; ``placed`` is the last placement, ``first_token`` None until it
    is drawn, or while only its instance knows."""

    send: Send
    session_id: str
    branch: Branch
    call: Call
    model: str
    prompt: TokenIds
    reply: TokenIds
    sent: int
    warmup: bool
    returning: bool = False
    known_tokens: int = 0
    placed: int = 0
    instance: str = ""
    placement: str = ""
    first_token: int | None = None

    def request(self, claim: Claim) -> CallRequest:
        """The call as the gateway gets it."""
        return CallRequest(
            model=self.model,
            tenant=TENANT,
            tokens=self.prompt,
            max_tokens=self.call.output,
            forced=self.reply.tobytes(),
            claim=claim,
            stem=len(self.prompt),
        )

    def context(self) -> TokenIds:
        """What the call leaves: its prompt and its reply."""
        return np.concatenate((self.prompt, self.reply))

    def leaves(self, times: CallTimes | None) -> None:
        """Its instance is lost, with what it knew of the call."""
        if self.first_token is None and times is not None:
            self.first_token = times.first_token

    def drawn(self, before: int, now: int) -> list[int]:
        """The ids drawn after the first ``before`` of the reply when there are ``now`` of them."""
        drawn: list[int] = self.reply[before:now].tolist()
        return drawn

    # --- records ---------------------------------------------------------------------------------

    def failed(self, reason: str, now: int) -> CallRecord:
        return replace(self._record(now), error=reason)

    def finished(
        self, leg: Leg, finished: Finished, times: CallTimes, now: int, gateway_ns: int
    ) -> CallRecord:
        """The call's client has the end ``gateway_ns`` after the instance told it, at ``now``.
        ``leg`` is the one that ended it: what attempts before took is waiting in the queue."""
        intended, end, drawn = self.send.intended, now + gateway_ns, finished.completion_tokens
        first = next((at for at in (self.first_token, times.first_token) if at is not None), now)
        first += gateway_ns
        computed = finished.prompt_tokens + leg.carried - finished.cached_tokens
        known = self.known_tokens + leg.carried - finished.cached_tokens
        latency = Latency(
            intended=intended,
            sent=self.sent,
            placed=self.placed + gateway_ns,
            ended=end,
            prefill=round(finished.prefill * 1e9),
            computed=computed,
            recomputed=max(0, min(known, computed)),
        )
        return replace(
            self._record(end),
            ttft=(first - intended) / 1e9,
            tpot=(end - first) / 1e9 / (drawn - 1) if drawn > 1 else None,
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=leg.call.cached_tokens,
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
