"""Many decode iterations reported at once mean what they mean one by one.

Two drivers get the same calls at the same times, and both check the content of every block. What
differs is how decode is reported: by ``stepped``, or by ``advanced`` in stretches as long as the
``horizon`` allows. Nothing else may: what is decided and when, what comes of it, which blocks are
known, held and evicted. Only the messages of a stretch come together, and what a stretch teaches
a cost profile is left out (see ``test_parts``): decode costs are known from the start.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .timed import Stretched, Timed
from .worlds import World, worlds


@settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), seed=st.integers(0, 9))
def test_stretches_are_their_iterations(world: World, seed: int) -> None:
    stepped = Timed(*world.parts())
    stepped.play()
    stretched = Stretched(*world.parts(), random.Random(seed))
    stretched.play()
    for one, other in zip(stepped.log, stretched.log, strict=True):
        assert one == other
    assert stretched.told <= stepped.told
    stepped.check_idle()
    stretched.check_idle()
