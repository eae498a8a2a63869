from __future__ import annotations

from alipes.gateway.fleet.prospects import Prospects


def test_a_model_is_lost_with_its_last_instance() -> None:
    serving = {"a": frozenset({"hot", "cold"}), "b": frozenset({"cold"})}
    prospects = Prospects(serving)
    assert prospects.failed("hot") == ()
    assert prospects.any
    assert prospects.failed("hot") == ()
    assert prospects.failed("cold") == ("a", "b")
    assert not prospects.any
