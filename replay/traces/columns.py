"""Sessions of one call each, held as columns: a row takes 28 bytes, not a kilobyte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Wait
from alipes.replay.traces.spans import new_content, one


@dataclass(frozen=True, eq=False)
class Columns(Sequence[Session]):
    """Of n rows: line ``numbers`` int64 (n,), ``starts`` float64 (n,) s, ``prompts`` and
    ``outputs`` int32 (n,) tokens. Sessions are made when they are asked for; their content is
    their own. ``stem`` begins their names."""

    stem: str
    numbers: NDArray[np.int64]
    starts: NDArray[np.float64]
    prompts: NDArray[np.int32]
    outputs: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Session: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...

    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        if isinstance(index, slice):
            return Columns(
                self.stem,
                self.numbers[index],
                self.starts[index],
                self.prompts[index],
                self.outputs[index],
            )
        prompt = int(self.prompts[index])
        call = Call(
            prompt,
            int(self.outputs[index]),
            0,
            one(new_content(MAIN, 0), prompt),
            wait=Wait.START,
        )
        name = f"{self.stem}-{self.numbers[index]}"
        return Session(name, (Branch(MAIN, (call,)),), start=float(self.starts[index]))

    def __iter__(self) -> Iterator[Session]:
        return (self[i] for i in range(len(self)))
