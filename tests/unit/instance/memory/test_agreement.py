from __future__ import annotations

import pytest

from alipes.instance.engine.protocol import CopyEnd
from alipes.instance.memory.agreement import Agreement


def begun(ranks: int = 2, blocks: int = 4) -> Agreement:
    agreement = Agreement(ranks, bound=100)
    agreement.begin(1, blocks, now=0)
    return agreement


def test_nothing_is_decided_before_every_rank_has_ended() -> None:
    agreement = begun()
    agreement.report(0, 1, [7, 8, 9, 10], ended=True)
    agreement.report(1, 1, [7, 8], ended=False)
    assert agreement.decided(now=99) == ()
    agreement.report(1, 1, [9, 10], ended=True)
    assert agreement.decided(now=99) == (CopyEnd(1, 4),)
    assert agreement.decided(now=99) == ()


def test_the_verdict_is_the_common_beginning() -> None:
    agreement = begun(ranks=3)
    agreement.report(0, 1, [1, 2, 3, 4], ended=True)
    agreement.report(1, 1, [1, 2, 3], ended=True)
    agreement.report(2, 1, [1, 5, 3, 4], ended=True)
    assert agreement.decided(now=1) == (CopyEnd(1, 1),)


@pytest.mark.parametrize(("said", "intact"), [(0, 0), (3, 3)])
def test_of_a_late_rank_counts_what_it_has_said(said: int, intact: int) -> None:
    agreement = begun()
    agreement.report(0, 1, [0] * 4, ended=True)
    agreement.report(1, 1, [0] * said, ended=False)
    assert agreement.decided(now=100) == (CopyEnd(1, intact),)
    # Too late: the slabs may hold something else by now.
    agreement.report(1, 1, [0] * (4 - said), ended=True)
    assert agreement.decided(now=200) == ()


def test_verdicts_keep_the_order_of_tickets() -> None:
    agreement = begun(blocks=1)
    agreement.begin(2, 1, now=5)
    for rank in (0, 1):
        agreement.report(rank, 2, [0], ended=True)
    assert agreement.pending == 2
    assert agreement.decided(now=99) == ()
    assert agreement.decided(now=100) == (CopyEnd(1, 0), CopyEnd(2, 1))


def test_misuse_is_refused() -> None:
    agreement = begun()
    with pytest.raises(ValueError, match="tickets must rise"):
        agreement.begin(1, 1, now=0)
    with pytest.raises(ValueError, match="copy 2 has not begun"):
        agreement.report(0, 2, [], ended=True)
    with pytest.raises(ValueError, match="no more than 4 blocks"):
        agreement.report(0, 1, [0] * 5, ended=True)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="not one of 2"):
            agreement.report(rank, 1, [], ended=True)
    agreement.report(0, 1, [0], ended=True)
    with pytest.raises(ValueError, match="rank 0 has ended its copy 1"):
        agreement.report(0, 1, [0], ended=False)
    agreement.report(1, 1, [0], ended=True)
    assert agreement.decided(now=0) == (CopyEnd(1, 1),)
