"""Figures of rounds: what they are made of, SP, device memory (Talaria Figures 10, 13, 14, 15)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from alipes.replay.reports.form import Areas, Bars, Figure, Layer, Lines, Mark, Series
from alipes.replay.reports.groups import Group
from alipes.replay.reports.measures import GIB, measure
from alipes.replay.runs import MemoryRecord, RoundRecord, Run

ROUND_PARTS: Final = ("prefill", "decode", "restore", "switch", "linger", "idle")
WINDOW: Final = 11
MOST_ROUNDS: Final = 600
"""Rounds that a panel draws; of more, equally many are averaged into each of these."""


def composition_figure(groups: Sequence[Group]) -> Figure | None:
    """Stacked seconds of every round, a panel for each group (Figure 14)."""
    stacks = [(group.label, stack) for group in groups if (stack := _stack(group))]
    if not stacks:
        return None
    top = max(max(map(sum, zip(*(one.y for one in stack), strict=True))) for _, stack in stacks)
    panels = tuple(Areas(label, "round", "seconds", stack, top) for label, stack in stacks)
    return Figure(
        "rounds",
        "What rounds are made of",
        f"Seconds of each round by what the instance did, a moving average of {WINDOW} rounds;"
        " rounds of the same number on several instances or in several runs are averaged.",
        panels,
    )


def _rounds(group: Group) -> list[RoundRecord]:
    return [one for run in group.runs for one in run.rounds]


def _stack(group: Group) -> tuple[Series, ...]:
    rounds = _rounds(group)
    numbers = sorted({one.index for one in rounds})
    means = {part: _by_index(rounds, part) for part in ROUND_PARTS}
    x = thinned([float(number) for number in numbers])
    return tuple(
        Series(part, part, x, thinned(moving_average([means[part][n] for n in numbers])))
        for part in ROUND_PARTS
        if any(means[part].values())
    )


def _by_index(rounds: Sequence[RoundRecord], part: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for one in rounds:
        values.setdefault(one.index, []).append(getattr(one, part))
    return {index: sum(found) / len(found) for index, found in values.items()}


def moving_average(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Centred; near the ends over those of the window that there are."""
    half, sums = window // 2, [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    averages = []
    for i in range(len(values)):
        low, high = max(0, i - half), min(len(values), i + half + 1)
        averages.append((sums[high] - sums[low]) / (high - low))
    return averages


def thinned(values: Sequence[float], most: int = MOST_ROUNDS) -> tuple[float, ...]:
    """Means of neighbours, so that at most ``most`` are left."""
    width = -(-len(values) // most)
    return tuple(
        sum(part) / len(part)
        for part in (values[i : i + width] for i in range(0, len(values), max(1, width)))
    )


def totals_figure(groups: Sequence[Group]) -> Figure | None:
    """Shares of round time, and its sum, by part (Figure 13)."""
    there = [group for group in groups if _rounds(group)]
    sums = [[_part_seconds(group, part) for part in ROUND_PARTS] for group in there]
    if not any(map(any, sums)):
        return None
    names = tuple(group.label for group in there)
    shares = [[part / (sum(row) or 1.0) for part in row] for row in sums]
    return Figure(
        "round-time",
        "Round time in all",
        "Left, shares of the time of all rounds; right, its seconds, the mean of the runs.",
        (
            Bars("Shares", "share of round time", names, _layers(shares)),
            Bars("Seconds", "s", names, _layers(sums)),
        ),
    )


def _part_seconds(group: Group, part: str) -> float:
    runs = [run for run in group.runs if run.rounds]
    return sum(float(getattr(one, part)) for run in runs for one in run.rounds) / len(runs)


def _layers(rows: Sequence[Sequence[float]]) -> tuple[Layer, ...]:
    return tuple(
        Layer(part, part, tuple(row[i] for row in rows))
        for i, part in enumerate(ROUND_PARTS)
        if any(row[i] for row in rows)
    )


def admission_figure(groups: Sequence[Group]) -> Figure | None:
    """Returns that session-prefill let in and parked, of all and a round (Figure 10)."""
    found = [(group, measure(group)) for group in groups if _rounds(group)]
    if not any(numbers["sp_admitted"] or numbers["sp_parked"] for _, numbers in found):
        return None
    names = tuple(group.label for group, _ in found)
    shares = tuple(numbers.get("sp_share", 0.0) for _, numbers in found)
    colours = tuple(group.colour for group, _ in found)
    layers = tuple(
        Layer(words, colour, tuple(n[f"sp_{how}"] / n["rounds"] for _, n in found))
        for words, how, colour in (
            ("let in", "admitted", "decode"),
            ("parked", "parked", "slot"),
        )
    )
    return Figure(
        "session-prefill",
        "Session-prefill",
        "Returning calls that an open slot let in, as a share of those it handled and by round."
        " A call parked in several rounds counts in each.",
        (
            Bars("Let in", "share of returns", names, (Layer("", "ink", shares),), colours=colours),
            Bars("Handled", "returns a round", names, layers),
        ),
    )


def memory_figure(groups: Sequence[Group]) -> Figure | None:
    """Device memory over rounds, or over time where there are no rounds (Figure 15)."""
    there = [group for group in groups if any(run.memory for run in group.runs)]
    if not there:
        return None
    by_round = all(run.rounds for group in there for run in group.runs if run.memory)
    # What an instance held outside of any round is in none of them.
    footprints = [_footprint(group, by_round) for group in there]
    series = tuple(one for one in footprints if one.x)
    if not series:
        return None
    capacities = sorted({m.capacity for g in there for run in g.runs for m in run.memory})
    peak = max(used(m) for g in there for run in g.runs for m in run.memory) / GIB
    marks = [Mark("y", size / GIB, f"capacity {size / GIB:,.1f} GiB") for size in capacities]
    panel = Lines(
        f"Peak {peak:,.1f} GiB",
        "round" if by_round else "seconds",
        "GiB used",
        series,
        marks=tuple(marks),
    )
    return Figure(
        "memory",
        "Device memory",
        "Bytes in use on all devices of an instance (weights, KV, staged weights, run time),"
        + (" averaged by round." if by_round else " over time.")
        + " The peak is the largest of any record.",
        (panel,),
    )


def used(record: MemoryRecord) -> int:
    return record.weights + record.kv + record.staged + record.runtime


def _footprint(group: Group, by_round: bool) -> Series:
    points = _mean_by_round(group.runs) if by_round else time_footprint(group.runs)
    at, size = [x for x, _ in points], [held / GIB for _, held in points]
    return Series(group.label, group.colour, thinned(at), thinned(size), group.stroke)


def _mean_by_round(runs: Sequence[Run]) -> list[tuple[float, float]]:
    values: dict[float, list[float]] = {}
    for run in runs:
        for index, held in round_footprint(run):
            values.setdefault(index, []).append(held)
    return [(index, sum(found) / len(found)) for index, found in sorted(values.items())]


def time_footprint(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """(seconds, mean of what each instance of each run held last) at every record."""
    records = [
        (record.at, number, record.instance, used(record))
        for number, run in enumerate(runs)
        for record in run.memory
    ]
    held: dict[tuple[int, str], int] = {}
    points = []
    for at, number, instance, size in sorted(records):
        held[number, instance] = size
        points.append((at, sum(held.values()) / len(held)))
    return points


def round_footprint(run: Run) -> list[tuple[float, float]]:
    """(round, mean bytes of the records in it) of every instance; a round without a record has
    the bytes of the last one before it."""
    found = []
    for instance in dict.fromkeys(one.instance for one in run.rounds):
        rounds = sorted((one for one in run.rounds if one.instance == instance), key=_at)
        records = sorted((one for one in run.memory if one.instance == instance), key=_at)
        begins = [one.at for one in rounds]
        inside: list[list[int]] = [[] for _ in range(len(rounds) + 1)]
        for record in records:
            inside[bisect_right(begins, record.at)].append(used(record))
        last = inside[0][-1:]
        for one, there in zip(rounds, inside[1:], strict=True):
            counted = there or last
            if counted:
                found.append((float(one.index), sum(counted) / len(counted)))
            last = counted[-1:]
    return found


def _at(record: MemoryRecord | RoundRecord) -> float:
    return record.at
