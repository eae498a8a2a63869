"""What a replay sends: every session, id, body, length and gap, fixed before the first call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.replay.records import PlannedTotals
from alipes.replay.shorten import text_of
from alipes.replay.traces.model import Message, Trajectory

SEED: Final = 1
NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """One session to be: a recorded trajectory replayed on a model."""

    session: str
    trajectory: Trajectory
    model: str


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call to be sent ``gap`` nanoseconds after the previous one of its session ends."""

    request_id: str
    prompt: tuple[Message, ...]
    max_tokens: int
    gap: int
    final: bool


@dataclass(frozen=True, slots=True)
class Session:
    """One planned session; ``share`` is the part of each message that was kept (1: all)."""

    session: str
    model: str
    share: float
    calls: tuple[PlannedCall, ...]

    def headers(self, index: int) -> dict[str, str]:
        call = self.calls[index]
        headers = {"x-session-id": self.session, "x-request-id": call.request_id}
        return headers | {"x-session-final": "true"} if call.final else headers

    def body(self, index: int) -> bytes:
        """The request body of one call, byte for byte the same in every run."""
        call = self.calls[index]
        return msgspec.json.encode(
            {
                "model": self.model,
                "messages": [message.wire() for message in call.prompt],
                "max_tokens": call.max_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "seed": SEED,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    @property
    def totals(self) -> PlannedTotals:
        return PlannedTotals(self.session, self.model, len(self.calls), self.share)


def assign(
    trajectories: Sequence[Trajectory], models: Sequence[str], per_model: int
) -> tuple[Assignment, ...]:
    """``per_model`` sessions on each model, taking the trajectories in turn."""
    sessions = []
    for index in range(per_model):
        trajectory = trajectories[index % len(trajectories)]
        for model in models:
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", model)
            sessions.append(Assignment(f"{trajectory.name}.{plain}.{index}", trajectory, model))
    return tuple(sessions)


def plan_session(
    assignment: Assignment,
    shortened: Trajectory,
    share: float,
    counts: Mapping[str, int],
    gap_cap: float,
) -> Session:
    """The calls of one session. ``shortened`` is the assignment's trajectory with ``share`` of
    each message; ``counts`` has the tokens of each reply's text; ``gap_cap`` is in seconds."""
    last = len(shortened.calls) - 1
    calls = tuple(
        PlannedCall(
            request_id=f"{assignment.session}.{index}",
            prompt=call.prompt,
            max_tokens=max(1, counts[text_of(call.reply)]),
            gap=round(min(call.gap, gap_cap) * NANOSECONDS),
            final=index == last,
        )
        for index, call in enumerate(shortened.calls)
    )
    return Session(assignment.session, assignment.model, share, calls)
