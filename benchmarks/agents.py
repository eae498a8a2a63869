"""Agent sessions as work for a benchmark: drawn from a seed, the same in every configuration.

A session asks a question and goes on with tool outputs; every prompt begins with the whole
conversation so far. What the model answers is forced, so that every configuration replays the
same calls, except in the last call of a session: it is drawn greedily from all that came before,
and equal texts tell that no configuration computed from a wrong state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from tokenizers import Tokenizer

from alipes.instance.engine.fake.words import words_of
from alipes.replay.plan import PlannedCall, PlannedSession, TextPrompts
from alipes.replay.traces.form import MAIN, Branch, Call, Session
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
) -> tuple[PlannedSession, ...]:
    """``per_model`` sessions on each model; ``folder`` has the tokenizer that all of them use."""
    return tuple(_sessions(models, per_model, shape, folder, seed))


def _sessions(
    models: Sequence[str], per_model: int, shape: Shape, folder: Path, seed: int
) -> Iterator[PlannedSession]:
    for number in range(per_model):
        for place, model in enumerate(models):
            writer = Writer(folder, np.random.default_rng((seed, number, place)))
            yield session(f"{model}.{number}", model, shape, writer)


def session(name: str, model: str, shape: Shape, writer: Writer) -> PlannedSession:
    count = int(writer.rng.integers(shape.calls[0], shape.calls[1] + 1))
    messages = [Message("user", writer.text(writer.ids(shape.first)))]
    calls, gaps = [], []
    for index in range(count):
        answer, final = writer.ids(shape.answer), index == count - 1
        calls.append(PlannedCall(tuple(messages), len(answer), () if final else answer))
        gaps.append(writer.gap())
        messages.append(Message("assistant", writer.text(answer)))
        messages.append(Message("user", writer.text(writer.ids(shape.tool))))
    # Lengths of prompts are for the endpoint to count.
    recorded = tuple(
        Call(1, call.max_tokens, gap=gap) for call, gap in zip(calls, gaps, strict=True)
    )
    prompts = TextPrompts((tuple(calls),))
    return PlannedSession(name, (model,), Session(name, (Branch(MAIN, recorded),)), prompts)


def with_gaps(session: PlannedSession, gaps: Sequence[float]) -> PlannedSession:
    """The same session with other seconds before its calls."""
    (main,) = session.recorded.branches
    calls = tuple(
        msgspec.structs.replace(call, gap=gap) for call, gap in zip(main.calls, gaps, strict=True)
    )
    branches = (msgspec.structs.replace(main, calls=calls),)
    return replace(session, recorded=msgspec.structs.replace(session.recorded, branches=branches))
