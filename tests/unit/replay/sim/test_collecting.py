from __future__ import annotations

import gc
from contextlib import suppress

from alipes.replay.sim.collecting import collecting_rarely


def test_the_collector_is_as_it_was_afterwards() -> None:
    usual = gc.get_threshold()
    with suppress(KeyError), collecting_rarely():
        assert gc.get_threshold()[0] > usual[0]
        raise KeyError
    assert gc.get_threshold() == usual
