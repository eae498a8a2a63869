"""A replay's result as tables for a terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from alipes.replay.records import CallRecord
from alipes.replay.stats import ModelRow, SessionRow, Summary
from alipes.replay.traces.form import MAIN

TEXT_COLUMNS = frozenset({"model", "session", "instance", "reason"})


def model_table(rows: Iterable[ModelRow]) -> RenderableType:
    table = plain_table(
        ("model", "done", "calls", "SCT p50", "p95", "TTFT p50", "p95", "TPOT p50", "cached", "out")
    )
    for row in rows:
        table.add_row(
            escape(row.model),
            f"{row.complete}/{row.sessions}",
            str(row.calls),
            _number(row.sct_p50),
            _number(row.sct_p95),
            _number(row.ttft_p50),
            _number(row.ttft_p95),
            _number(row.tpot_p50, digits=3),
            _share(row.cached_tokens, row.prompt_tokens),
            f"{row.completion_tokens:,}",
        )
    return titled("Models: seconds, p50 and p95 by nearest rank", table)


def session_table(rows: Iterable[SessionRow]) -> RenderableType:
    table = plain_table(
        ("model", "session", "calls", "SCT", "TTFT", "p95", "prompt", "cached", "out")
    )
    for row in rows:
        table.add_row(
            escape(row.model),
            label(row.session),
            f"{row.calls}/{row.planned}",
            "[red]failed[/red]" if row.failed else _number(row.sct),
            _number(row.ttft_p50),
            _number(row.ttft_p95),
            f"{row.prompt_tokens:,}",
            _share(row.cached_tokens, row.prompt_tokens),
            f"{row.completion_tokens:,}",
        )
    return titled(
        "Sessions: seconds, SCT from first call due to last completion, TTFT p50, p95", table
    )


def call_tables(records: Sequence[CallRecord]) -> Iterable[RenderableType]:
    """One table for each session, in the order in which their first calls ended."""
    for session in dict.fromkeys(record.session for record in records):
        yield _call_table([record for record in records if record.session == session])


def _call_table(records: Sequence[CallRecord]) -> RenderableType:
    table = plain_table(
        ("call", "at", "TTFT", "took", "prompt", "cached", "out", "instance", "reason")
    )
    for record in records:
        table.add_row(
            _call(record),
            _number(record.intended),
            "[red]failed[/red]" if record.error else _number(record.ttft),
            _number(record.finished - record.intended),
            _count(record.prompt_tokens),
            _share(record.cached_tokens or 0, record.prompt_tokens or 0),
            _count(record.completion_tokens),
            escape(record.instance),
            escape(record.placement),
        )
    session, model = label(records[0].session), records[0].model
    return titled(f"Calls of {session} on {model}: seconds, TTFT from when due", table)


def remarks(summary: Summary) -> list[str]:
    """What a reader of the tables must know besides."""
    lines = []
    if not summary.complete:
        lines.append("Interrupted: these are the calls that had ended.")
    if summary.token_counts != "exact":
        lines.append(
            "The endpoint has no /tokenize: completion lengths are estimated from the recorded"
            " text, at 3 characters a token."
        )
    lines.extend(
        f"{label(row.session)} was shortened to {row.shortened:.0%} of each message"
        f" for the context of {row.model}."
        for row in summary.sessions
        if row.shortened < 1
    )
    other = sum(row.other_length for row in summary.models if row.model != "all")
    if other:
        lines.append(
            f"{other} calls gave another number of tokens than recorded:"
            " the endpoint does not honour ignore_eos."
        )
    lines.extend(f"{count} failed: {error}" for error, count in sorted(summary.errors.items()))
    return lines


def label(session: str) -> str:
    """A session's id without digest and model: the trace it replays and its number."""
    trace = session.split(".", 1)[0].rsplit("-", 1)[0]
    return f"{trace}#{session.rsplit('.', 1)[-1]}"


def titled(title: str, table: Table) -> RenderableType:
    """The table under a title that may be wider than it."""
    return Group(Text(title, style="bold"), table)


def plain_table(columns: Iterable[str], texts: Container[str] = TEXT_COLUMNS) -> Table:
    """A line under the head alone; the columns in ``texts`` to the left, numbers to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        text = column in texts
        table.add_column(
            column, justify="left" if text else "right", overflow="fold", no_wrap=not text
        )
    return table


def _call(record: CallRecord) -> str:
    own = f"{record.branch}.{record.index}"
    return escape(own if record.branch != MAIN else str(record.index))


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
