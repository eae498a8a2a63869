"""What a replay sends: every session, id, body and length, fixed before the first call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from alipes.replay.records import PlannedTotals
from alipes.replay.traces.form import Session
from alipes.replay.traces.model import Message

SEED: Final = 1
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One session to be: a recorded one, each branch replayed on one of ``models``."""

    session: str
    recorded: Session
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it is sent to ``path`` under the endpoint; it is to draw ``expected`` tokens."""

    request_id: str
    model: str
    path: str
    headers: dict[str, str]
    body: bytes
    expected: int


class Prompts(Protocol):
    """What the calls of one session say, by branch number and index."""

    @property
    def path(self) -> str: ...

    def fields(self, branch: int, index: int) -> dict[str, Any]:
        """The fields of the body that hold the prompt."""

    def expected(self, branch: int, index: int) -> int:
        """How many tokens the call is to draw, at least 1."""

    def forced(self, branch: int, index: int) -> Sequence[int]:
        """The tokens that it is made to draw; none leaves it free."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call with text; ``forced`` are the token ids that it is made to draw."""

    prompt: tuple[Message, ...]
    max_tokens: int
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Chat completions, by branch."""

    calls: tuple[tuple[PlannedCall, ...], ...]

    @property
    def path(self) -> str:
        return CHAT

    def fields(self, branch: int, index: int) -> dict[str, Any]:
        return {"messages": [message.wire() for message in self.calls[branch][index].prompt]}

    def expected(self, branch: int, index: int) -> int:
        return self.calls[branch][index].max_tokens

    def forced(self, branch: int, index: int) -> Sequence[int]:
        return self.calls[branch][index].forced


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One session as it is sent; ``share`` is the part of each message that was kept (1: all).
    ``recorded`` says when its calls are due. With ``plain`` bodies have fields of the OpenAI API
    only, so that the endpoint itself decides where a reply ends."""

    session: str
    models: tuple[str, ...]
    recorded: Session
    prompts: Prompts
    share: float = 1.0
    plain: bool = False
    warmup: bool = False

    def request(self, branch: int, index: int, last: bool) -> Request:
        """One call, byte for byte the same in every run."""
        name = self.recorded.branches[branch].name
        own = f"{_plain(name)}.{index}" if branch else f"{index}"
        request_id = f"{self.session}.{own}"
        return Request(
            request_id,
            self.models[branch],
            self.prompts.path,
            self._headers(branch, request_id, last),
            self._body(branch, index),
            self.prompts.expected(branch, index),
        )

    def _headers(self, branch: int, request_id: str, last: bool) -> dict[str, str]:
        headers = {"x-session-id": self.session, "x-request-id": request_id}
        main, own = self.recorded.branches[0].name, self.recorded.branches[branch]
        # The main branch has no name for a gateway, neither as branch nor as parent.
        if branch:
            headers["x-branch-id"] = quote(own.name)
            if own.parent != main:
                headers["x-parent-branch-id"] = quote(own.parent)
        return headers | {"x-session-final": "true"} if last else headers

    def _body(self, branch: int, index: int) -> bytes:
        fields: dict[str, Any] = {
            "model": self.models[branch],
            **self.prompts.fields(branch, index),
            "max_tokens": self.prompts.expected(branch, index),
            "ignore_eos": True,
            "temperature": 0,
            "seed": SEED,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.plain:
            del fields["ignore_eos"]
        forced = self.prompts.forced(branch, index)
        if len(forced):
            fields["forced_token_ids"] = forced
        return msgspec.json.encode(fields)

    @property
    def totals(self) -> PlannedTotals:
        return PlannedTotals(self.session, self.models[0], self.recorded.calls, self.share)


class PlanError(Exception):
    """The sessions cannot be assigned to models; one line says why and what to do."""


def assign(
    sessions: Sequence[Session],
    models: Sequence[str],
    count: int = 0,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Assignment, ...]:
    """``count`` sessions (0: as many as there are), the recorded ones in turn: each on its own
    model, under the name that ``renamed`` gives it, or without one on every one of ``models``.
    Raises ``PlanError``."""
    renamed = renamed or {}
    assignments = []
    for number in range(count or len(sessions)):
        session = sessions[number % len(sessions)]
        if not session.model and not models:
            raise PlanError(
                f"--models names no model, nor does session {session.id};"
                " give one or more, separated by commas"
            )
        for model in (session.model,) if session.model else models:
            own = [renamed.get(model, model)]
            for branch in session.branches[1:]:
                own.append(renamed.get(branch.model, branch.model) or own[0])
            name = f"{_plain(session.id)}.{_plain(own[0])}.{number}"
            assignments.append(Assignment(name, session, tuple(own)))
    return tuple(assignments)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
