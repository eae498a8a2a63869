"""A replay's result as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table

from alipes.replay.records import CallRecord
from alipes.replay.stats import ModelRow, SessionRow, Summary


def model_table(rows: Iterable[ModelRow]) -> Table:
    table = _table(
        "Models (times in seconds, p50 / p95 by nearest rank)",
        ("model", "done", "calls", "failed", "SCT", "TTFT", "TPOT", "prompt", "cached", "out"),
    )
    for row in rows:
        table.add_row(
            row.model,
            f"{row.complete}/{row.sessions}",
            str(row.calls),
            str(row.failed),
            _pair(row.sct_p50, row.sct_p95),
            _pair(row.ttft_p50, row.ttft_p95),
            _pair(row.tpot_p50, row.tpot_p95, digits=3),
            f"{row.prompt_tokens:,}",
            _share(row.cached_tokens, row.prompt_tokens),
            f"{row.completion_tokens:,}",
        )
    return table


def session_table(rows: Iterable[SessionRow]) -> Table:
    table = _table(
        "Sessions (SCT: first intended enqueue to last completion, seconds)",
        ("model", "session", "calls", "SCT", "TTFT", "prompt", "cached", "out", "kept"),
    )
    for row in rows:
        table.add_row(
            row.model,
            label(row.session),
            f"{row.calls}/{row.planned}",
            "[red]failed[/red]" if row.failed else _number(row.sct),
            _pair(row.ttft_p50, row.ttft_p95),
            f"{row.prompt_tokens:,}",
            _share(row.cached_tokens, row.prompt_tokens),
            f"{row.completion_tokens:,}",
            f"{row.shortened:.0%}",
        )
    return table


def call_table(records: Iterable[CallRecord]) -> Table:
    table = _table(
        "Calls (seconds; TTFT from the intended enqueue)",
        (
            "model",
            "session",
            "call",
            "at",
            "TTFT",
            "took",
            "prompt",
            "cached",
            "out",
            "by",
            "reason",
        ),
    )
    for record in sorted(records, key=lambda record: (record.session, record.index)):
        table.add_row(
            record.model,
            label(record.session),
            str(record.index),
            _number(record.intended),
            "[red]failed[/red]" if record.error else _number(record.ttft),
            _number(record.finished - record.intended),
            _count(record.prompt_tokens),
            _share(record.cached_tokens or 0, record.prompt_tokens or 0),
            f"{_count(record.completion_tokens)}/{record.expected_tokens}",
            _plain(record.instance),
            _plain(record.placement),
        )
    return table


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
    other = sum(row.other_length for row in summary.models if row.model != "all")
    if other:
        lines.append(
            f"{other} calls gave another number of tokens than recorded:"
            " the endpoint does not honour ignore_eos."
        )
    lines.extend(
        f"{count} failed: {_plain(error)}" for error, count in sorted(summary.errors.items())
    )
    return lines


def label(session: str) -> str:
    """A session's id without the model: the trace it replays and its number."""
    return f"{session.split('.', 1)[0]}#{session.rsplit('.', 1)[-1]}"


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        text = column in ("model", "session", "by", "reason")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(p50: float | None, p95: float | None, digits: int = 2) -> str:
    return f"{_number(p50, digits)} / {_number(p95, digits)}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
