"""May an instance take one more call? The two checks of Talaria Algorithm 1, line 14."""

from __future__ import annotations

from collections.abc import Mapping

from alipes.gateway.routing.decision import Why
from alipes.gateway.routing.predict import has_work
from alipes.instance.contract import Hello, Load, ModelReport


def blocks_for(tokens: int, calls: int, block_tokens: int) -> int:
    """Device blocks that ``calls`` calls with ``tokens`` tokens in all take at most: each
    wastes less than one block."""
    return (tokens + calls * (block_tokens - 1)) // block_tokens


def longest_call(report: ModelReport, block_tokens: int) -> int:
    """Tokens, prompt and output, of the longest call that an instance can hold. The last token
    drawn is never computed and needs no place."""
    return min(report.context, report.kv_blocks * block_tokens + 1)


def misfit(report: ModelReport, block_tokens: int, prompt: int, output: int) -> str:
    """Why a call can never run with this model there, in numbers; empty when it can."""
    limit = longest_call(report, block_tokens)
    if prompt + output <= limit:
        return ""
    what = "context" if limit == report.context else "KV memory"
    return (
        f"prompt of {prompt} and output of {output} tokens exceed the {what} of "
        f"{limit} tokens of {report.name}"
    )


def is_full(hello: Hello, loads: Mapping[str, Load]) -> bool:
    """Whether an instance with these loads would refuse one more call."""
    return not _idle(loads) and sum(load.waiting for load in loads.values()) >= hello.max_waiting


def check(
    hello: Hello,
    model: str,
    before: Mapping[str, Load],
    after: Mapping[str, Load],
    output: int,
    round_length: float,
) -> Why:
    """``ok`` when the instance can take the call that turns loads ``before`` into ``after``.

    An instance without work takes anything that fits it, so that a call whose round alone
    exceeds the bound is late rather than lost. ``output`` is the typical completion length,
    ``round_length`` the predicted round with the call in it.
    """
    if _idle(before):
        return Why.OK
    if is_full(hello, before):
        return Why.FULL
    if not _memory_fits(hello, model, before, after, output):
        return Why.MEMORY
    if round_length > hello.targets.round_bound:
        return Why.ROUND
    return Why.OK


def _idle(loads: Mapping[str, Load]) -> bool:
    return not any(has_work(load) for load in loads.values())


def _memory_fits(
    hello: Hello, model: str, before: Mapping[str, Load], after: Mapping[str, Load], output: int
) -> bool:
    """Blocks for all prompts and predicted outputs of the model; a call alone is judged by
    ``misfit``."""
    if not has_work(before.get(model, Load())):
        return True
    load = after[model]
    calls = load.waiting + load.running
    outputs = load.waiting * output + min(load.remaining_tokens, load.running * output)
    tokens = load.running_context + load.waiting_tokens + outputs
    capacity = next(report.kv_blocks for report in hello.models if report.name == model)
    return blocks_for(tokens, calls, hello.block_tokens) <= capacity
