"""The simulator held against this machine: the same small trace live and simulated.

What is compared is the session completion time (SCT): session by session against the median of the
live runs, and configuration by configuration by who is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

import numpy as np

from alipes.replay.reports.sessions import planned_calls, session_results
from alipes.replay.runs import Run
from alipes.replay.sim.outcome import Claim, Row, row_of
from alipes.replay.stats import nearest_rank
from alipes.replay.traces.form import Session
from alipes.replay.traces.synth.branches import BranchBuilder
from alipes.replay.traces.synth.distributions import generator
from alipes.replay.traces.synth.talaria import GAP

NAME: Final = "validation"
GAP_CAP: Final = 3.0
ERROR_P50: Final = 0.15
ERROR_P90: Final = 0.30
SOURCE: Final = "our target"

CONFIGURATIONS: Final[Mapping[str, Mapping[str, bool]]] = {
    "all-on": {},
    "no-sp": {"session_prefill": False},
    "no-host-kv": {"host_kv": False},
    "round-only": {"session_prefill": False, "host_kv": False, "staging": False},
}
"""What is turned off, live and simulated."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sessions of one model. Tokens, as inclusive ranges: of the first prompt, of what later
    ones append to the reply before them, of a reply."""

    sessions: int
    calls: int
    first: tuple[int, int]
    added: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration: its live runs and the simulated one."""

    live: tuple[Run, ...]
    simulated: Run

    def errors(self) -> list[float]:
        """Of each session: how far the simulated SCT is from the median live one, as a part of
        it. Raises ValueError where a session is not whole in every run."""
        live, simulated = [sct(run) for run in self.live], sct(self.simulated)
        return [
            abs(simulated[session] / median(run[session] for run in live) - 1)
            for session in simulated
        ]

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest median SCT of the live runs."""
        medians = [_p50(run) for run in self.live]
        return min(medians), max(medians)


def small_trace(shapes: Mapping[str, Shape], seed: int) -> tuple[Session, ...]:
    """Sessions of token ids by model: every prompt is the one before it, its reply and something
    new. Gaps are those of Talaria's agents. Models take turns in the order of arrival."""
    sessions = []
    for number in range(max(shape.sessions for shape in shapes.values())):
        for model, shape in shapes.items():
            if number < shape.sessions:
                sessions.append(_session(f"{model}.{number}", model, shape, seed))
    return tuple(sessions)


def _session(name: str, model: str, shape: Shape, seed: int) -> Session:
    rng = generator(seed, name)
    gaps = np.minimum(GAP.draw(rng, shape.calls), GAP_CAP)
    branch = BranchBuilder()
    for number, gap in enumerate(gaps.tolist()):
        added = int(rng.integers(*(shape.added if number else shape.first), endpoint=True))
        output = int(rng.integers(*shape.output, endpoint=True))
        branch.append(added, output, round(gap, 3))
    return Session(name, (branch.branch(),), model=model)


def sct(run: Run) -> dict[str, float]:
    """Seconds by session. Raises ValueError for one that is not whole."""
    found = {}
    for result in session_results(run, planned_calls([run])):
        if result.sct is None:
            raise ValueError(f"{run.folder}: session {result.session} is not whole")
        found[result.session] = result.sct
    return found


def rows(compared: Mapping[str, Comparison]) -> tuple[Row, ...]:
    """Every live run and the simulated one, the latter with its errors."""
    found: list[Row] = []
    for comparison in compared.values():
        found += map(row_of, comparison.live)
        row = row_of(comparison.simulated)
        errors = comparison.errors()
        row.measures["error_p50"] = nearest_rank(errors, 50) or 0.0
        row.measures["error_p90"] = nearest_rank(errors, 90) or 0.0
        found.append(row)
    return tuple(found)


def claims(compared: Mapping[str, Comparison]) -> tuple[Claim, ...]:
    errors = [error for comparison in compared.values() for error in comparison.errors()]
    judged = list(_judged(compared))
    wrong = [pair for pair, right in judged if not right]
    named = f" ({', '.join(wrong)})" if wrong else ""
    return (
        _error("median", errors, 50, ERROR_P50),
        _error("90th percentile", errors, 90, ERROR_P90),
        Claim(
            f"pairs of configurations ranked otherwise than live, of {len(judged)} whose live"
            f" intervals do not overlap{named} ({SOURCE})",
            len(wrong),
            "",
            "== 0",
            not wrong,
        ),
    )


def _error(which: str, errors: Sequence[float], percent: float, target: float) -> Claim:
    value = nearest_rank(errors, percent)
    assert value is not None
    return Claim(
        f"error of a session's simulated SCT, {which} of {len(errors)} ({SOURCE})",
        value,
        "of live",
        f"<= {target:g}",
        value <= target,
    )


def _judged(compared: Mapping[str, Comparison]) -> Iterator[tuple[str, bool]]:
    """Of every pair whose live medians do not overlap: whether the simulated ones are ranked the
    same."""
    for (name, one), (other_name, other) in combinations(compared.items(), 2):
        (low, high), (other_low, other_high) = one.interval, other.interval
        if high < other_low:
            yield f"{name} < {other_name}", _p50(one.simulated) < _p50(other.simulated)
        elif other_high < low:
            yield f"{other_name} < {name}", _p50(other.simulated) < _p50(one.simulated)


def _p50(run: Run) -> float:
    value = nearest_rank(sct(run).values(), 50)
    assert value is not None
    return value
