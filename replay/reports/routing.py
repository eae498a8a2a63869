"""Figures of placement: policies at loads, and the sweep of lease times (Talaria 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from alipes.replay.reports.form import Bars, Figure, Layer, Lines, Panel, Series
from alipes.replay.reports.groups import Group, load_words, loads_of
from alipes.replay.reports.latency import cdf, first_tokens
from alipes.replay.reports.measures import measure

Numbers = Mapping[str, float]
RATES: Final = (
    ("same instance", "same_instance", "c0"),
    ("model resident", "model_resident", "c1"),
    ("leases not used", "unused_leases", "c2"),
)
RETURNING: Final = (("p50", "returning_ttft_p50", "c0"), ("p95", "returning_ttft_p95", "c3"))


def router_figure(groups: Sequence[Group]) -> Figure | None:
    """TTFT at the highest load, and avoidable opens at each, where they were counted and there
    was a choice of instances."""
    if len({call.instance for group in groups for call in group.calls}) < 2:
        return None
    numbers = {group.label: measure(group) for group in groups}
    counted = [group for group in groups if "avoidable_opens" in numbers[group.label]]
    names = tuple(dict.fromkeys(group.name for group in counted))
    if len({group.sweep or group.name for group in counted if group.load == counted[0].load}) < 2:
        return None
    loads = loads_of(counted)
    panels: list[Panel] = []
    highest = [group for group in counted if group.load == loads[-1] and first_tokens(group)]
    if highest:
        panels.append(
            Lines(
                f"TTFT, {load_words(loads[-1])}" if loads[-1] else "TTFT",
                "TTFT, s",
                "share",
                tuple(cdf(g.name, g.colour, first_tokens(g), g.stroke) for g in highest),
                stepped=True,
                y_range=(0.0, 1.0),
            )
        )
    panels.append(_opens(counted, names, loads, numbers))
    return Figure(
        "router",
        "Placement",
        "How long calls waited for their first token, and how often the chosen instance had to"
        " open a model that another one had active.",
        tuple(panels),
    )


def _opens(
    groups: Sequence[Group],
    names: Sequence[str],
    loads: Sequence[str],
    numbers: Mapping[str, Numbers],
) -> Bars:
    found = {(g.name, g.load): numbers[g.label]["avoidable_opens"] for g in groups}
    colours = {g.name: g.colour for g in groups}
    layers = tuple(
        Layer(name, colours[name], tuple(found.get((name, load), 0.0) for load in loads))
        for name in names
    )
    categories = tuple(load_words(load) if load else "all" for load in loads)
    return Bars("Avoidable opens", "opens a run", categories, layers, grouped=True)


def lease_figures(groups: Sequence[Group]) -> list[Figure]:
    """One for every set of groups that differ in nothing but their lease time."""
    sweeps: dict[str, list[Group]] = {}
    for group in groups:
        if group.sweep and group.lease is not None:
            sweeps.setdefault(group.sweep, []).append(group)
    figures: list[Figure] = []
    for members in sweeps.values():
        names = {group.configuration for group in members}
        load = load_words(members[0].load) if members[0].load else ""
        words = ", ".join(filter(None, [*(names if len(names) == 1 else ()), load]))
        figure = _sweep(members, words, len(figures))
        if figure:
            figures.append(figure)
    return figures


def _sweep(groups: Sequence[Group], words: str, number: int) -> Figure | None:
    ordered = sorted(groups, key=lambda group: group.lease or 0.0)
    numbers = [(group.lease or 0.0, measure(group)) for group in ordered]
    panels = []
    for title, label, wanted, scale in (
        ("Locality", "% of returns, placements, leases", RATES, 100.0),
        ("Returning calls", "TTFT, s", RETURNING, 1.0),
    ):
        series = tuple(
            curve
            for name, key, colour in wanted
            if (curve := _curve(numbers, name, key, colour, scale))
        )
        if series:
            panels.append(Lines(title, "lease, s", label, series, dots=True))
    if not panels:
        return None
    return Figure(
        "lease-sweep" if not number else f"lease-sweep-{number + 1}",
        f"How long to hold a place: {words}" if words else "How long to hold a place",
        "Left, returns that went to the instance of their branch's last call, placements that"
        " found the model active, leases that no return used; right, TTFT of returning calls.",
        tuple(panels),
    )


def _curve(
    numbers: Sequence[tuple[float, Numbers]], name: str, key: str, colour: str, scale: float
) -> Series | None:
    points = [(lease, found[key] * scale) for lease, found in numbers if key in found]
    if not points:
        return None
    return Series(name, colour, tuple(x for x, _ in points), tuple(y for _, y in points))
