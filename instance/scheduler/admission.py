"""What a submission must be to be taken in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from alipes.instance.contract import (
    KEY_BYTES,
    Failed,
    FailureClass,
    InstanceSettings,
    ModelReport,
    Submit,
)


def invalid(
    call: Submit, reports: Mapping[str, ModelReport], settings: InstanceSettings
) -> Failed | None:
    """Why the caller is at fault, naming the field; None when the call can be served."""
    problem = _problem(call, reports, settings)
    if problem is None:
        return None
    field, reason = problem
    return Failed(call.call_id, FailureClass.INVALID, reason, field)


def _problem(
    call: Submit, reports: Mapping[str, ModelReport], settings: InstanceSettings
) -> tuple[str, str] | None:
    report = reports.get(call.model)
    if report is None:
        return "model", f"model {call.model!r} is not served here; choose one of {list(reports)}"
    if len(call.root) != KEY_BYTES:
        return "root", f"the chain root has {len(call.root)} bytes instead of {KEY_BYTES}"
    if call.max_tokens < 1:
        return "max_tokens", f"max_tokens is {call.max_tokens}; ask for at least 1"
    if call.forced and not settings.allow_forced_tokens:
        return "forced", "forced tokens need allow_forced_tokens in the cluster file"
    if call.forced and call.sampling.grammar:
        return "forced", "a call with forced tokens cannot have a grammar"
    for name, ids in (("tokens", call.tokens), ("forced", call.forced)):
        reason = _bad_ids(ids, report.vocab_size)
        if reason:
            return name, reason
    if not call.tokens:
        return "tokens", "the prompt is empty; send at least one token"
    if not 0 <= call.resumed < min(len(call.tokens) // 4, call.max_tokens):
        return "resumed", (
            f"resumed is {call.resumed}; it must be less than the {len(call.tokens) // 4} tokens"
            f" sent and than max_tokens {call.max_tokens}, and not negative"
        )
    return _too_long(call, report, settings.block_tokens)


def _bad_ids(ids: bytes, vocab_size: int) -> str | None:
    if len(ids) % 4:
        return f"{len(ids)} bytes are no whole number of int32 ids"
    values = np.frombuffer(ids, dtype="<i4")
    if len(values) and (values.min() < 0 or values.max() >= vocab_size):
        return f"token ids must be from 0 to {vocab_size - 1}"
    return None


def _too_long(call: Submit, report: ModelReport, block_tokens: int) -> tuple[str, str] | None:
    prompt = len(call.tokens) // 4 - call.resumed
    total = prompt + call.max_tokens
    capacity = report.kv_blocks * block_tokens
    limit, what = report.context, "context"
    if capacity + 1 < limit:
        # The last token drawn is never computed, so it needs no place.
        limit, what = capacity + 1, "KV capacity here"
    if total <= limit:
        return None
    field = "tokens" if prompt >= limit else "max_tokens"
    return field, (
        f"{prompt} prompt tokens and max_tokens {call.max_tokens} exceed the {what} of "
        f"{limit} tokens of {call.model}"
    )
