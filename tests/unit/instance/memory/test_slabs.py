from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.memory.slabs import FreeSlabs


def test_neighbours_that_were_given_back_apart_are_taken_as_one_run() -> None:
    free = FreeSlabs(8)
    assert free.take(6) == [0, 1, 2, 3, 4, 5]
    free.give([(2, 3), (4,)])
    free.give([(0,)])
    assert free.count == 6
    assert free.take(5) == [0, 2, 3, 4, 6]


def test_no_slabs_at_all() -> None:
    free = FreeSlabs(0)
    free.give([])
    assert (free.count, free.take(0)) == (0, [])


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_the_lowest_go_first_whatever_came_back(total: int, data: st.DataObject) -> None:
    free, slow = FreeSlabs(total), set(range(total))
    groups: list[tuple[int, ...]] = []
    for _ in range(8):
        count = data.draw(st.integers(0, len(slow)))
        taken = free.take(count)
        assert taken == sorted(slow)[:count]
        slow.difference_update(taken)
        size = data.draw(st.integers(1, 4))
        groups += [tuple(taken[at : at + size]) for at in range(0, count, size)]
        back = data.draw(st.lists(st.sampled_from(groups), unique=True)) if groups else []
        free.give(back)
        groups = [group for group in groups if group not in back]
        slow.update(slab for group in back for slab in group)
        assert free.count == len(slow)
