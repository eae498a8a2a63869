from __future__ import annotations

import pytest
import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.device import PlainMemory, host_buffer
from alipes.instance.memory.moves import Move


@pytest.mark.parametrize("nbytes", [0, 1, 3 * 4096 + 1])
def test_host_memory_starts_zeroed(nbytes: int) -> None:
    memory = host_buffer(nbytes)
    assert memory.shape == (nbytes,)
    assert not bool(memory.any())


def test_more_than_the_machine_gives_is_refused_in_numbers() -> None:
    with pytest.raises(EngineError, match="no 1,152,921,504,606,846,976 bytes of memory: lower"):
        host_buffer(1 << 60)


def test_plain_memory_has_no_pages_to_exchange() -> None:
    memory = PlainMemory(100, torch.device("cpu"))
    assert (memory.data.shape, memory.granule) == ((100,), 0)
    with pytest.raises(EngineError, match="no pages to exchange"):
        memory.exchange([Move(0, 50, 10)])
