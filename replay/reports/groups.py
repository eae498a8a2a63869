"""Runs that are one configuration under one set of settings, with the names and colours they keep.

Runs differ by configuration, kind, settings and how many sessions they planned; those that differ
in nothing but seeds are one group and are pooled. ``load`` divides figures into panels,
``lease_seconds`` makes a sweep, any other setting that differs goes into the name. A sweep may go
over configurations too: groups that differ in nothing but their lease time are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from alipes.replay.records import CallRecord
from alipes.replay.reports.form import Stroke
from alipes.replay.reports.palette import series_colour, series_stroke
from alipes.replay.reports.sessions import SessionResult, planned_calls, session_results
from alipes.replay.runs import Run

LOAD: Final = "load"
LEASE: Final = "lease_seconds"
LOADS: Final = ("low", "medium", "high")

Settings = Mapping[str, str]
_Key = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """``name`` tells it from others at the same load, ``label`` from all others. ``calls`` are
    those that succeeded and count, ``failed`` how many did not; ``runs`` are without their warm-up.
    ``sweep`` is the same for groups that differ in their ``lease`` alone, empty where there is but
    one such."""

    configuration: str
    kind: str
    load: str
    lease: float | None
    sweep: str
    name: str
    label: str
    colour: str
    stroke: Stroke
    runs: tuple[Run, ...]
    sessions: tuple[SessionResult, ...]
    calls: tuple[CallRecord, ...]
    failed: int

    @property
    def whole(self) -> tuple[SessionResult, ...]:
        """Sessions of which every call succeeded."""
        return tuple(session for session in self.sessions if session.sct is not None)


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Groups of the runs of one scenario: loads from low to high, at each of them configurations
    in the order given, in each of these lease times from low to high."""
    found: dict[_Key, list[Run]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    planned = planned_calls(runs)
    varied = _varied(found)
    mixed = len({kind for _, kind, _ in found}) > 1
    numbers: dict[str, int] = {}
    groups = []
    for key in sorted(found, key=lambda key: _order(key, list(found))):
        bare = _name(key, varied)
        number = numbers.setdefault(bare, len(numbers))
        sweep = _sweep(key, found)
        groups.append(_group(key, found[key], bare, number, mixed, varied, planned, sweep))
    return tuple(groups)


def _group(
    key: _Key,
    runs: Sequence[Run],
    bare: str,
    number: int,
    mixed: bool,
    varied: Mapping[tuple[str, str], set[str]],
    planned: Mapping[tuple[int, str], int],
    sweep: str,
) -> Group:
    configuration, kind, pairs = key
    settings = dict(pairs)
    load = settings.get(LOAD, "") if varied[configuration, kind] & {LOAD} else ""
    name = f"{bare} ({kind})" if mixed else bare
    return Group(
        configuration,
        kind,
        load,
        _number(settings.get(LEASE)),
        sweep,
        name,
        f"{name}, {load_words(load)}" if load else name,
        series_colour(number),
        series_stroke(number, mixed and kind == "live"),
        tuple(run.measured() for run in runs),
        tuple(result for run in runs for result in session_results(run, planned)),
        tuple(call for run in runs for call in run.counted if not call.error),
        sum(bool(call.error) for run in runs for call in run.counted),
    )


def load_words(load: str) -> str:
    return f"{load} load" if _number(load) is None else f"load {load}"


def loads_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """The loads there are, from low to high; one empty one where none is told apart."""
    return tuple(dict.fromkeys(sorted((g.load for g in groups), key=_load_order)))


def _key(run: Run) -> _Key:
    settings = {**run.info.settings, "hardware": run.info.hardware}
    if run.info.planned:
        # A run of only the first sessions is another experiment than one of all of them.
        settings["sessions"] = str(len(run.info.planned))
    settings.pop("seed", None)
    return run.info.configuration, run.info.kind, tuple(sorted(settings.items()))


def _varied(keys: Iterable[_Key]) -> dict[tuple[str, str], set[str]]:
    """By configuration and kind the settings in which its runs differ, one that only some have
    too. A load that differs anywhere is told everywhere: panels hold what belongs together."""
    settings: dict[tuple[str, str], list[Settings]] = {}
    for configuration, kind, pairs in keys:
        settings.setdefault((configuration, kind), []).append(dict(pairs))
    loads = {one.get(LOAD) for found in settings.values() for one in found}
    return {
        place: {
            name
            for name in {name for one in found for name in one}
            if len({one.get(name) for one in found}) > 1 or (name == LOAD and len(loads) > 1)
        }
        for place, found in settings.items()
    }


def _sweep(key: _Key, keys: Iterable[_Key]) -> str:
    """Kind and settings without the lease time, if others differ from it in that alone."""
    leases = {
        dict(pairs).get(LEASE)
        for _, kind, pairs in keys
        if _unleased(kind, pairs) == _unleased(*key[1:])
    }
    return _unleased(*key[1:]) if len(leases) > 1 else ""


def _unleased(kind: str, pairs: tuple[tuple[str, str], ...]) -> str:
    return repr((kind, [pair for pair in pairs if pair[0] != LEASE]))


def _name(key: _Key, varied: Mapping[tuple[str, str], set[str]]) -> str:
    """The configuration and the settings that tell its runs apart."""
    configuration, kind, pairs = key
    words = []
    for name, value in pairs:
        if name == LOAD or name not in varied[configuration, kind]:
            continue
        words.append(f"lease {value} s" if name == LEASE else f"{name} {value}")
    return ", ".join([configuration, *words])


def _order(key: _Key, keys: Sequence[_Key]) -> tuple[tuple[int, float, str], int, float, int]:
    """Loads and leases by size; configurations and kinds as they came."""
    configurations = [configuration for configuration, _, _ in keys]
    settings = dict(key[2])
    lease = _number(settings.get(LEASE))
    return (
        _load_order(settings.get(LOAD, "")),
        configurations.index(key[0]),
        -1.0 if lease is None else lease,
        keys.index(key),
    )


def _load_order(load: str) -> tuple[int, float, str]:
    number = _number(load)
    if number is not None:
        return 1, number, ""
    return (0, LOADS.index(load), "") if load in LOADS else (2, 0.0, load)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
