"""``alipes trace info``: what a recorded or synthetic workload holds."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from alipes.cli.output import USAGE, complain, print_json, remark, say
from alipes.cli.trace_convert import BlockOption, FilesArgument, FormatOption, PromptsOption
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.load import load_told
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.statistics import Spread, Statistics, statistics
from alipes.replay.traces.turns import Prompts


def info(
    files: FilesArgument,
    format: FormatOption = "",
    block: BlockOption = BLOCK,
    prompts: PromptsOption = Prompts.UNKNOWN,
    gap_cap: Annotated[
        float, typer.Option(min=0, help="Count gaps longer than this, seconds")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Print what files were taken for and why, and the statistics of the trace: depth, gaps,
    prompts, reuse, sharing. Warn where rows can be read in two ways."""
    try:
        trace, taken = load_told(files, format or None, block, prompts)
        figures = statistics(trace, gap_cap)
    except (TraceError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    for file in taken:
        for warning in file.warnings:
            remark(f"{file.file}: {warning}")
    if as_json:
        print_json({"files": taken, **msgspec.structs.asdict(figures)})
        return
    for file in taken:
        say(f"{file.file}: {file.format}: {file.why}")
    console = Console()
    console.print(figures.source, markup=False, highlight=False)
    console.print(_spreads(figures), _shares(figures))


def _spreads(figures: Statistics) -> Table:
    table = Table("", "count", "mean", "p50", "p95", "p99", "max")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "calls a session": figures.depth,
        "branches a session": figures.branches_a_session,
        "prompt, tokens": figures.prompt,
        "output, tokens": figures.output,
    }
    for name, values in rows.items():
        exact = (values.p50, values.p95, values.p99, values.max)
        table.add_row(
            name, f"{values.count:,}", f"{values.mean:,.1f}", *(f"{value:,}" for value in exact)
        )
    for wait, gaps in figures.gaps.items():
        table.add_row(f"gap ({wait}), s", *_seconds(gaps.seconds))
    return table


def _seconds(gaps: Spread) -> list[str]:
    values = (gaps.mean, gaps.p50, gaps.p95, gaps.p99, gaps.max)
    return [f"{gaps.count:,}", *(f"{v:.3f}" if v < 100 else f"{v:,.0f}" for v in values)]


def _shares(figures: Statistics) -> Table:
    table = Table("", "", show_header=False)
    table.columns[1].justify = "right"
    for name, value in _lines(figures):
        table.add_row(name, value)
    return table


def _lines(figures: Statistics) -> list[tuple[str, str]]:
    reuse, cache = figures.reuse, figures.cache
    models = [
        (f"calls of {name or 'no model'}", f"{calls:,}") for name, calls in figures.models.items()
    ]
    above = [
        (f"gaps after {wait} above {figures.gap_cap:g} s", f"{gaps.above_cap:.1%}")
        for wait, gaps in figures.gaps.items()
    ]
    kept = [
        (f"prompt kept after {wait}, mean", f"{share:.1%}")
        for wait, share in reuse.kept_after.items()
    ]
    return [
        ("sessions", f"{figures.sessions:,}"),
        ("branches", f"{figures.branches:,}"),
        ("calls", f"{figures.calls:,}"),
        *models,
        ("calls by sub-agents", f"{figures.sub_agent_calls:.1%}"),
        (
            "active branches of a session, most and mean",
            f"{figures.active_branches_max} and {figures.active_branches_mean:.2f}",
        ),
        *above,
        ("pause a call, s", f"{figures.pause:.3f}"),
        ("continuations", f"{reuse.continuations:,}"),
        ("of them with over half of the previous prompt", f"{reuse.over_half:.1%}"),
        *kept,
        ("rewrites", f"{reuse.rewrites:,}"),
        ("prompt kept by rewrites, mean", f"{reuse.kept_by_rewrites:.1%}"),
        ("hit rate of an unlimited cache", f"{cache.hit_rate:.1%}"),
        ("prompt tokens from other sessions", f"{cache.shared:.1%}"),
        ("uncached tokens a call", f"{figures.uncached:,.0f}"),
        ("input to output", f"{figures.input_output:.1f}"),
        ("uncached input to output", f"{figures.uncached_output:.2f}"),
        ("prompt tokens", f"{figures.prompt_tokens:,}"),
        ("output tokens", f"{figures.output_tokens:,}"),
        ("total tokens", f"{figures.prompt_tokens + figures.output_tokens:,}"),
    ]
