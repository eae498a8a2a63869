"""Predicted seconds of work, from what an instance measured.

Pure functions of ``Estimate`` and ``Load``. ``chunk`` is the instance's prefill chunk in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from alipes.instance.contract import Estimate, Load, Targets

TYPICAL = 0.1
"""Weight of the newest call in what calls of a model are taken to be like: the last ten or so."""


def prefill_seconds(cost: Estimate, tokens: int, chunk: int, start: int = 0) -> float:
    """Computing ``tokens`` tokens of a prompt from position ``start`` on, chunk by chunk."""
    full, rest = divmod(tokens, chunk)
    chunks = full + (rest > 0)
    # Sum over the chunks of length times end position.
    pairs = chunk * (full * start + chunk * full * (full + 1) // 2) + rest * (start + tokens)
    return chunks * cost.prefill_base + tokens * cost.prefill_token + pairs * cost.prefill_context


def restore_seconds(cost: Estimate, tokens: int, copies: int = 1) -> float:
    """Copying ``tokens`` tokens' state from the host to the device, for ``copies`` calls."""
    return copies * cost.restore_base + tokens * cost.restore_token if tokens else 0.0


def decode_step(cost: Estimate, calls: int, context: int) -> float:
    """One decode iteration of ``calls`` calls with ``context`` tokens in all; 0 without calls."""
    if calls <= 0:
        return 0.0
    return cost.decode_base + calls * cost.decode_call + context * cost.decode_context


def mean_prompt(load: Load) -> int:
    """Tokens still to compute for a typical call that waits."""
    return ceil(load.waiting_tokens / max(1, load.waiting))


def waiting_prefill(cost: Estimate, load: Load, chunk: int) -> float:
    """Prefill of all that waits, each call taken as a typical one."""
    if load.waiting_tokens <= 0:
        return 0.0
    return max(1, load.waiting) * prefill_seconds(cost, mean_prompt(load), chunk)


def full_step(cost: Estimate, load: Load, max_running: int) -> float:
    """The decode iteration once what waits has joined what runs, as far as it may."""
    calls = min(load.running + load.waiting, max_running)
    return decode_step(cost, calls, load.running_context + load.waiting_tokens)


def typical_remaining(load: Load) -> float:
    """Tokens that a running call has yet to draw."""
    return load.remaining_tokens / max(1, load.running)


def has_work(load: Load) -> bool:
    return load.waiting + load.running > 0


@dataclass(frozen=True, slots=True)
class Round:
    """A predicted round: its length, and the prefill seconds that one round under the bound
    of Talaria Eq. 5 can give (negative when switches alone exceed it)."""

    length: float
    budget: float


def predict_round(
    loads: Mapping[str, Load],
    costs: Mapping[str, Estimate],
    active: str,
    targets: Targets,
    chunk: int,
    max_running: int,
    held: float = 0.0,
) -> Round:
    """The round in which every model with work has its slot (Talaria Eq. 4 solved for R).

    With X the prefill and switches of the round and t_D the decode steps of its models,
    R = X / (1 - sum(t_D) / T_TPOT), infinite where the decode steps alone exceed T_TPOT. A
    prompt that exceeds a round's budget is spread over slots and counts as one chunk. ``held``
    seconds of restores and leases are in X besides what the loads show.
    """
    working = [model for model, load in loads.items() if has_work(load)]
    share = sum(full_step(costs[m], loads[m], max_running) for m in working) / targets.tpot
    if share >= 1:
        return Round(inf, 0.0)
    alone = working == [active]
    switches = 0.0 if alone else sum(costs[m].switch for m in working)
    budget = targets.round_bound * (1 - share) - switches - held
    prefill = sum(_counted_prefill(costs[m], loads[m], chunk, budget) for m in working)
    return Round((switches + held + prefill) / (1 - share), budget)


def _counted_prefill(cost: Estimate, load: Load, chunk: int, budget: float) -> float:
    prompt = mean_prompt(load)
    if prefill_seconds(cost, prompt, chunk) > budget:
        return max(1, load.waiting) * prefill_seconds(cost, min(prompt, chunk), chunk)
    return waiting_prefill(cost, load, chunk)


def backlog_seconds(
    loads: Mapping[str, Load],
    costs: Mapping[str, Estimate],
    active: str,
    chunk: int,
    max_running: int,
) -> float:
    """Time until all that is here has been served, one model after another; what waits is
    taken to be as long as what runs."""
    total = 0.0
    for model, load in loads.items():
        if not has_work(load) or model not in costs:
            continue
        cost = costs[model]
        batches = ceil((load.running + load.waiting) / max_running)
        steps = batches * typical_remaining(load)
        total += waiting_prefill(cost, load, chunk) + steps * full_step(cost, load, max_running)
        total += 0.0 if model == active else cost.switch
    return total


class MovingMeans:
    """An exponentially weighted moving average for each model: a new value weighs ``weight``."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._means: dict[str, float] = {}

    def observe(self, model: str, value: float, times: int = 1) -> None:
        """Take in a value, as if it had come ``times`` times; the first one is the mean."""
        mean = self._means.get(model, value)
        self._means[model] = value + (mean - value) * (1 - self._weight) ** times

    def of(self, model: str) -> float | None:
        return self._means.get(model)

    def known(self) -> frozenset[str]:
        return frozenset(self._means)


class OutputLengths:
    """Typical completion length of each model."""

    def __init__(self, weight: float = TYPICAL) -> None:
        self._means = MovingMeans(weight)

    def finished(self, model: str, tokens: int) -> None:
        self._means.observe(model, float(tokens))

    def predicted(self, model: str, limit: int) -> int:
        """At most ``limit``, which is the answer until a call of the model has finished."""
        mean = self._means.of(model)
        return limit if mean is None else max(1, min(limit, ceil(mean)))
