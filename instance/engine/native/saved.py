"""States of running calls in host memory while another model is active."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.arena import host_buffer


@dataclass(frozen=True, slots=True)
class SavedState:
    """``layers[i]`` is (blocks, elements) of layer i; the tail of the last block is whatever
    the device held."""

    model: str
    layers: tuple[torch.Tensor, ...]
    nbytes: int


class SavedCalls:
    """Bounded by ``limit`` bytes in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: dict[bytes, SavedState] = {}
        self.used = 0

    def reserve(self, call_id: bytes, model: str, blocks: int, row_bytes: list[int]) -> SavedState:
        """Room for ``blocks`` rows of each layer. Raises ``EngineError`` when it is not there."""
        self.discard(call_id)
        nbytes = blocks * sum(row_bytes)
        if self.used + nbytes > self._limit:
            raise EngineError(
                f"call {call_id.hex()}: saving needs {nbytes:,} bytes, host_bytes is "
                f"{self._limit:,} with {self.used:,} in use: raise host_bytes or save fewer calls"
            )
        memory = host_buffer(nbytes)
        layers, at = [], 0
        for size in row_bytes:
            layers.append(memory[at : at + blocks * size].view(blocks, size))
            at += blocks * size
        state = SavedState(model, tuple(layers), nbytes)
        self._calls[call_id] = state
        self.used += nbytes
        return state

    def take(self, call_id: bytes, model: str) -> SavedState:
        """Raises ``EngineError`` unless the call was saved for ``model``."""
        state = self._calls.get(call_id)
        if state is None:
            raise EngineError(f"call {call_id.hex()} has no saved state: compute its prompt again")
        if state.model != model:
            raise EngineError(
                f"call {call_id.hex()} was saved for {state.model}, but {model} is active"
            )
        return state

    def discard(self, call_id: bytes) -> None:
        state = self._calls.pop(call_id, None)
        if state is not None:
            self.used -= state.nbytes
