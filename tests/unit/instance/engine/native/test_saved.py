from __future__ import annotations

import pytest

from alipes.instance.engine.native.saved import SavedCalls
from alipes.instance.engine.protocol import EngineError


def test_bytes_are_counted_and_bounded() -> None:
    saved = SavedCalls(100)
    state = saved.reserve(b"a", "m", 2, [10, 20])
    assert [tuple(layer.shape) for layer in state.layers] == [(2, 10), (2, 20)]
    assert saved.used == 60
    with pytest.raises(EngineError, match=r"needs 60 bytes, host_bytes is 100 with 60 in use"):
        saved.reserve(b"b", "m", 2, [30])
    saved.reserve(b"a", "m", 1, [100])
    assert saved.used == 100
    saved.discard(b"a")
    saved.discard(b"a")
    assert saved.used == 0


def test_a_state_belongs_to_its_model() -> None:
    saved = SavedCalls(100)
    saved.reserve(b"a", "m", 1, [4])
    with pytest.raises(EngineError, match="saved for m, but n is active"):
        saved.take(b"a", "n")
    with pytest.raises(EngineError, match="no saved state"):
        saved.take(b"b", "m")
    assert saved.take(b"a", "m").nbytes == 4
