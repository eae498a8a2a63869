"""Sums of beginnings: they lead to all true ones and spare comparing the others."""

from __future__ import annotations

import numpy as np
import pytest

from alipes.gateway.routing import branches
from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.routing.prefixes import PrefixIndex, may_begin
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import TokenIds


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("block_tokens", [1, 50, 64, 256])
def test_only_a_true_beginning_may_begin(length: int, block_tokens: int) -> None:
    index: PrefixIndex[int] = PrefixIndex(7, block_tokens)
    whole = ids(*range(200))
    beginning, sums = whole[:length], index.sums(whole)
    place = index.place("t", "m", beginning, index.sums(beginning))
    assert may_begin(place, length, whole, sums)
    for at in range(length):
        changed = whole.copy()
        changed[at] += 1
        assert not may_begin(place, length, changed, index.sums(changed))
    if length:
        short = whole[: length - 1]
        assert not may_begin(place, length, short, index.sums(short))


@pytest.mark.parametrize("begun", [0, 1, 64, 100, 128, 200])
@pytest.mark.parametrize("block_tokens", [1, 64, 256])
def test_sums_go_on_from_those_of_a_beginning(begun: int, block_tokens: int) -> None:
    index: PrefixIndex[int] = PrefixIndex(7, block_tokens)
    whole = ids(*range(200))
    beginning = index.sums(whole[:begun])
    all_at_once = index.sums(whole).totals.tolist()
    assert index.sums(whole, beginning).totals.tolist() == all_at_once
    assert index.sums(whole).first(begun).totals.tolist() == beginning.totals.tolist()
    assert len(all_at_once) == 200 // block_tokens + 1


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_branches_that_share_a_long_beginning_are_not_all_compared(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where many conversations carry one cache key."""
    table = SessionTable(1000, 60.0, lambda size: bytes(range(size)), kept)
    claim = Claim("key", source=Source.CACHE_KEY)
    prompts = [ids(*range(1000), 5000 + n) for n in range(20)]
    calls = [table.begin("t", "m", claim, prompt, len(prompt), 1) for prompt in prompts]
    for call in calls:
        table.finished(call, "i", ids(9), 0, 0, 2)
    compared = []

    def known(record: branches.Record, tokens: TokenIds) -> int:
        compared.append(record)
        return was_known(record, tokens)

    was_known = branches.Record.known
    monkeypatch.setattr(branches.Record, "known", known)
    again = table.begin("t", "m", claim, ids(*prompts[7], 9, 1), 1003, 3)
    assert again.branch == calls[7].branch
    assert again.known_tokens == (1002 if kept else 1001)
    assert len(compared) == 1
