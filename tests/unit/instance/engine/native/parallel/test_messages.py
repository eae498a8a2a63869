from __future__ import annotations

import msgspec
import numpy as np

from alipes.instance.contract import Sampling
from alipes.instance.engine.native.parallel.messages import Step, ToRank, from_wire, to_wire
from alipes.instance.engine.protocol import Draw, Recurrence, Row


def test_rows_come_as_they_were_but_for_what_is_drawn() -> None:
    tokens = np.arange(5, dtype=np.int32)
    draw = Draw(Sampling(temperature=0.7, seed=3), tokens, 5)
    rows = [
        Row(b"a", tokens[2:], 2, range(1), draw, Recurrence(1, 2, 3, 1)),
        Row(b"b", tokens[::2], 0, (7, 3), None),
    ]
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(to_wire(rows)), type=ToRank)
    assert isinstance(message, Step)
    first, second = from_wire(message)
    assert (first.call_id, first.start, first.blocks) == (b"a", 2, (0,))
    assert first.tokens.tolist() == [2, 3, 4]
    assert first.recurrence == rows[0].recurrence
    assert first.draw is not None
    assert first.draw.sampling == Sampling(temperature=0)
    assert second.tokens.dtype == np.int32
    assert second.tokens.tolist() == [0, 2, 4]
    assert (second.blocks, second.draw, second.recurrence) == ((7, 3), None, None)
