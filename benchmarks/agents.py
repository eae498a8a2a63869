"""Agent sessions as work for a benchmark: drawn from a seed, the same in every configuration.

A session asks a question and goes on with tool outputs; every prompt begins with the whole
conversation so far. What the model answers is forced, so that every configuration replays the
same calls, except in the last call of a session: it is drawn greedily from all that came before,
and equal texts tell that no configuration computed from a wrong state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from tokenizers import Tokenizer

from alipes.instance.engine.fake.words import words_of
from alipes.replay.plan import NANOSECONDS, SEED, PlannedCall, Session
from alipes.replay.traces.model import Message

GAP_P50, GAP_P95, GAP_CAP = 0.39, 1.32, 10.0
"""Seconds between an answer and the next call of a session (Talaria 2.1, figure 2b; cap: 5.1)."""
Z95: Final = 1.6448536


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in tokens, as inclusive ranges: of the first question, of a tool's output, of an
    answer; ``calls`` is how many a session makes."""

    calls: tuple[int, int]
    first: tuple[int, int]
    tool: tuple[int, int]
    answer: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AgentSession(Session):
    """``answers`` are the token ids that each call is made to give; () is free."""

    answers: tuple[tuple[int, ...], ...] = ()

    def body(self, index: int) -> bytes:
        call = self.calls[index]
        body = {
            "model": self.model,
            "messages": [message.wire() for message in call.prompt],
            "max_tokens": call.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "seed": SEED,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.answers[index]:
            body["forced_token_ids"] = self.answers[index]
        return msgspec.json.encode(body)


class Writer:
    """Draws text of single-token words, so that lengths are exact and an answer's ids are those
    that its text has in the next prompt."""

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._words = words_of(folder)[0]
        self.rng = rng

    def ids(self, bounds: tuple[int, int]) -> tuple[int, ...]:
        count = int(self.rng.integers(bounds[0], bounds[1] + 1))
        return tuple(int(word) for word in self.rng.choice(self._words, count))

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def gap(self) -> float:
        """Seconds; log-normal with the paper's median and 95th percentile."""
        spread = math.log(GAP_P95 / GAP_P50) / Z95
        return min(GAP_CAP, float(self.rng.lognormal(math.log(GAP_P50), spread)))


def sessions(
    models: Sequence[str], per_model: int, shape: Shape, folder: Path, seed: int
) -> tuple[AgentSession, ...]:
    """``per_model`` sessions on each model; ``folder`` has the tokenizer that all of them use."""
    return tuple(_sessions(models, per_model, shape, folder, seed))


def _sessions(
    models: Sequence[str], per_model: int, shape: Shape, folder: Path, seed: int
) -> Iterator[AgentSession]:
    for number in range(per_model):
        for place, model in enumerate(models):
            writer = Writer(folder, np.random.default_rng((seed, number, place)))
            yield session(f"{model}.{number}", model, shape, writer)


def session(name: str, model: str, shape: Shape, writer: Writer) -> AgentSession:
    count = int(writer.rng.integers(shape.calls[0], shape.calls[1] + 1))
    messages = [Message("user", writer.text(writer.ids(shape.first)))]
    calls, answers = [], []
    for index in range(count):
        answer, final = writer.ids(shape.answer), index == count - 1
        calls.append(
            PlannedCall(
                request_id=f"{name}.{index}",
                prompt=tuple(messages),
                max_tokens=len(answer),
                gap=round(writer.gap() * NANOSECONDS),
                final=final,
            )
        )
        answers.append(() if final else answer)
        messages.append(Message("assistant", writer.text(answer)))
        messages.append(Message("user", writer.text(writer.ids(shape.tool))))
    return AgentSession(name, model, 1.0, tuple(calls), tuple(answers))
