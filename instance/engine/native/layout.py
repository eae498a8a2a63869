"""Where each packed tensor of a model lies in its weights region; pure arithmetic, no torch.

The packed form is what kernels read: query, key and value rows in one matrix, gate and up rows
in one matrix, experts stacked. The host copy and the arena hold the same bytes in this order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from alipes.instance.memory.specs import DTYPE_BYTES

ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Halves:
    """Of every ``head`` rows, ``dim`` from ``first`` on are rotary in the half-split form, in
    which i pairs with i + dim / 2."""

    head: int
    first: int
    dim: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Of every ``size`` rows of a checkpoint tensor, ``count`` from ``first`` on."""

    size: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Of ``of`` equal pieces of a checkpoint tensor along ``axis``, the one at ``index``."""

    axis: int
    index: int
    of: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that come from one checkpoint tensor or a ``cut`` of it, those that ``taken`` names or
    all. Those that ``rotary`` names are reordered to the interleaved form, in which neighbours
    pair; then ``plus`` is added to every element."""

    name: str
    shape: tuple[int, ...]
    rotary: Halves | None = None
    taken: Taken | None = None
    plus: float = 0.0
    cut: Cut | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        shape = list(self.shape)
        if self.taken is not None:
            shape[0] = shape[0] // self.taken.count * self.taken.size
        if self.cut is not None:
            shape[self.cut.axis] *= self.cut.of
        return tuple(shape)


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor of the packed form: ``parts`` follow one another in row-major order. One decode
    iteration of one call reads the share ``read`` of its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    parts: tuple[Part, ...]
    read: float = 1.0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    tensors: tuple[Packed, ...]
    nbytes: int

    def __getitem__(self, name: str) -> Packed:
        return next(tensor for tensor in self.tensors if tensor.name == name)


class Packer:
    """Lays tensors out one after another, in the order in which they are added."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._tensors: list[Packed] = []
        self._end = 0
        self._prefix = ""

    @contextmanager
    def under(self, prefix: str) -> Iterator[None]:
        """Names that are added meanwhile begin with ``prefix``."""
        self._prefix = prefix
        yield
        self._prefix = ""

    def matrix(self, name: str, *parts: Part, read: float = 1.0) -> None:
        """Rows of all parts, in the dtype of the model's weights."""
        rows = sum(part.shape[0] for part in parts)
        self.stack(name, parts, (rows, *parts[0].shape[1:]), read)

    def stack(
        self, name: str, parts: tuple[Part, ...], shape: tuple[int, ...], read: float = 1.0
    ) -> None:
        """As ``matrix``, in any ``shape`` of as many elements."""
        self._add(name, shape, self._dtype, parts, read)

    def exact(self, name: str, *parts: Part) -> None:
        """Rows of all parts of small tensors, whose rounding would cost accuracy and save
        nothing: they stay float32."""
        rows = sum(part.shape[0] for part in parts)
        self._add(name, (rows, *parts[0].shape[1:]), "float32", parts, 1.0)

    def layout(self) -> Layout:
        assert len({tensor.name for tensor in self._tensors}) == len(self._tensors)
        return Layout(tuple(self._tensors), self._end)

    def _add(
        self, name: str, shape: tuple[int, ...], dtype: str, parts: tuple[Part, ...], read: float
    ) -> None:
        packed = Packed(self._prefix + name, shape, dtype, self._end, parts, read)
        self._tensors.append(packed)
        self._end = -(-(self._end + packed.nbytes) // ALIGN) * ALIGN
