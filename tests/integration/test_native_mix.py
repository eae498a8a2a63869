"""The native engine under its scheduler: whatever chunks, caches, batches, switches, preemptions
and resumes a call meets, its tokens are those it gets alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from alipes.instance.contract import Finished

from .native_instance import BLOCK_BYTES, Instance, calls_of, served


@pytest.mark.parametrize("count", [24, pytest.param(96, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("seed", "families", "changes"),
    [
        (1, ["llama"], {"prefill_chunk": 48}),
        (2, ["llama", "qwen3", "qwen3-moe"], {"prefill_chunk": 100}),
        (3, ["qwen3", "qwen3-moe"], {"host_bytes": 1, "prefill_chunk": 64}),
        (4, ["llama", "qwen3"], {"host_bytes": 6 * BLOCK_BYTES, "max_running": 3}),
        (5, ["llama", "qwen3"], {"host_kv": False}),
        (6, ["qwen3", "deepseek-v3", "qwen3-next"], {"max_running": 3}),
        (7, ["deepseek-v2", "qwen3.5"], {"host_bytes": 8 * BLOCK_BYTES, "max_running": 3}),
    ],
)
def test_a_mix_changes_no_token(
    tiny_folders: dict[str, Path],
    seed: int,
    families: list[str],
    changes: dict[str, Any],
    count: int,
) -> None:
    rng = random.Random(seed)
    folders = {name: tiny_folders[name] for name in families}
    calls = calls_of(rng, families, count)
    busy = Instance(folders, blocks=12 if seed < 6 else 36, **changes)
    counters = served(busy, rng, calls)
    busy.close()
    assert counters.cached_tokens > 0
    if len(families) > 1:
        assert counters.switches > len(families)
        assert counters.preempted or counters.resumed
        shared = busy.settings.host_kv and busy.engine.host.count > 0
        assert shared or not counters.restored_tokens
        assert counters.restored_tokens > 0 or "host_bytes" in changes or not shared
    ended = [call for call in calls if call.call_id in busy.last]
    assert len(ended) > len(calls) // 2
    assert counters.cancelled + len(ended) == len(calls)
    alone = Instance(folders, blocks=200)
    for call in ended:
        alone.post(call)
        alone.until_ended(call.call_id)
        want, got = alone.last[call.call_id], busy.last[call.call_id]
        assert isinstance(want, Finished)
        assert isinstance(got, Finished)
        assert (got.reason, busy.drawn.get(call.call_id)) == (
            want.reason,
            alone.drawn.get(call.call_id),
        )
    alone.close()
