"""Prompts that grow by appending, with given percentiles over all calls.

A session begins with ``start`` tokens; each call appends its output and what the tool returned;
now and then the context is rewritten and begins anew. The size of tool results and how much it
differs between sessions are free, and two percentiles of the prompts fix them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.synth.distributions import Floats, Ints

Flags = NDArray[np.bool_]
_HALVINGS = 20  # of a bracket: to less than a token
_WIDEST = 2.0  # log standard deviation: sessions a hundred times as fast as others
_TOLERATED = 0.01  # of a percentile, which lies between two calls


@dataclass(frozen=True, slots=True)
class Draws:
    """By session: ``depth`` (calls), ``start`` (tokens), ``pace`` (normal). By call, sessions one
    after the other: ``tool`` (of median 1), ``output`` (tokens), ``ticket`` (uniform: the lowest
    are rewritten)."""

    depth: Ints
    start: Ints
    pace: Floats
    tool: Floats
    output: Ints
    ticket: Floats


@dataclass(frozen=True, slots=True)
class Target:
    """``p50`` and ``p95`` of the prompts (tokens), the share of ``continuations`` that are
    rewritten, and the longest prompt and output together, ``window``."""

    p50: float
    p95: float
    rewritten: float
    window: int


@dataclass(frozen=True, slots=True)
class Grown:
    """By call: ``prompt`` (tokens), ``first`` of its session, ``rewritten``. The median tool
    result is of ``tool`` tokens, and between sessions of log standard deviation ``spread``."""

    prompt: Ints
    first: Flags
    rewritten: Flags
    tool: float
    spread: float


def grow(draws: Draws, target: Target) -> Grown:
    """Raises ValueError where nothing gives the percentiles: of few or very uniform sessions."""
    first = np.zeros(len(draws.tool), bool)
    first[np.cumsum(draws.depth) - draws.depth] = True
    start, pace = np.repeat(draws.start, draws.depth), np.repeat(draws.pace, draws.depth)
    wanted = round(target.rewritten * int(np.count_nonzero(~first)))
    forced = np.zeros_like(first)
    while True:
        rewritten = forced | _lowest(draws.ticket, ~first & ~forced, wanted - int(forced.sum()))
        reset = first | rewritten
        fixed = start + _since(draws.output, reset)
        tool, spread = _fit(fixed, _since(draws.tool, reset), pace, target)
        results = np.maximum(np.rint(tool * np.exp(spread * pace) * draws.tool), 1)
        prompt = start + _since(draws.output + results, reset).astype(np.int64)
        # The first call of each stretch that the window cannot hold is rewritten too, in place of
        # one that was drawn: the share stays.
        over = (prompt + draws.output > target.window) & ~reset
        over &= ~np.concatenate(([False], over[:-1]))
        if not over.any():
            return Grown(prompt, first, rewritten, tool, spread)
        forced |= over


def _lowest(ticket: Floats, among: Flags, count: int) -> Flags:
    chosen = np.zeros_like(among)
    places = np.flatnonzero(among)
    order = np.argsort(ticket[places], kind="stable")
    chosen[places[order[: max(0, count)]]] = True
    return chosen


def _since(values: Ints | Floats, reset: Flags) -> Floats:
    """The sum of all values before each place, from the last reset on."""
    before = np.concatenate(([0], np.cumsum(values)[:-1]))
    begin = np.maximum.accumulate(np.where(reset, np.arange(len(reset)), 0))
    difference: Floats = (before - before[begin]).astype(np.float64)
    return difference


def _fit(fixed: Floats, results: Floats, pace: Floats, target: Target) -> tuple[float, float]:
    """(tool, spread) by a bisection in a bisection: larger results raise all prompts, and at an
    equal median a wider spread raises the p95."""
    middle, high = (ceil(len(fixed) * share) - 1 for share in (0.50, 0.95))

    def at(spread: float) -> tuple[float, Floats]:
        sized = np.exp(spread * pace) * results
        tool = _least(lambda tool: _reaches(fixed + tool * sized, middle, target.p50), target.p50)
        return tool, fixed + tool * sized

    spread = _least(lambda spread: _reaches(at(spread)[1], high, target.p95), _WIDEST)
    tool, prompts = at(spread)
    for rank, wanted in ((middle, target.p50), (high, target.p95)):
        if abs(float(np.partition(prompts, rank)[rank]) - wanted) > _TOLERATED * wanted:
            raise ValueError(
                f"{len(fixed)} calls cannot have prompts of {target.p50:.0f} tokens at the median "
                f"and {target.p95:.0f} at p95; take more sessions or another seed"
            )
    return tool, spread


def _reaches(values: Floats, rank: int, wanted: float) -> bool:
    """Whether the value at ``rank`` from below is at least ``wanted``."""
    return int(np.count_nonzero(values < wanted)) <= rank


def _least(enough: Callable[[float], bool], most: float) -> float:
    """The least of 0 to ``most`` that is enough, if more always is too."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
