"""Requests without sharing as columns: a few bytes each, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Wait
from alipes.replay.traces.spans import new_content, one


class Requests(Sequence[Session]):
    """Sessions of one call with content of its own, each made when it is asked for. Request i is
    named after ``stem`` and its line, arrives ``starts[i]`` (ns from the recording's begin), and
    has ``prompts[i]`` and ``outputs[i]`` tokens."""

    def __init__(
        self,
        stem: str,
        starts: NDArray[np.int64],
        lines: NDArray[np.int32],
        prompts: NDArray[np.int32],
        outputs: NDArray[np.int32],
    ) -> None:
        self.stem, self.starts = stem, starts
        self.lines, self.prompts, self.outputs = lines, prompts, outputs
        self._stream = new_content(MAIN, 0)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Session: ...

    @overload
    def __getitem__(self, index: slice) -> Requests: ...

    def __getitem__(self, index: int | slice) -> Session | Requests:
        if isinstance(index, slice):
            columns = (self.lines[index], self.prompts[index], self.outputs[index])
            return Requests(self.stem, self.starts[index], *columns)
        prompt, output = int(self.prompts[index]), int(self.outputs[index])
        call = Call(prompt, output, 0, one(self._stream, prompt), wait=Wait.START)
        name, start = f"{self.stem}-{self.lines[index]}", int(self.starts[index]) / 1e9
        return Session(name, (Branch(MAIN, (call,)),), start=start)

    def __iter__(self) -> Iterator[Session]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def holds(self, name: str) -> bool:
        """Whether a session has this id."""
        stem, _, line = name.rpartition("-")
        found = stem == self.stem and line.isascii() and line.isdigit()
        return found and bool((self.lines == int(line)).any())


class Chain(Sequence[Session]):
    """The sessions of several sequences, one after the other."""

    def __init__(self, parts: Sequence[Sequence[Session]]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, index: int) -> Session: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Session, ...]: ...

    def __getitem__(self, index: int | slice) -> Session | tuple[Session, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        for part in self.parts:
            if 0 <= place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(index)

    def __iter__(self) -> Iterator[Session]:
        for part in self.parts:
            yield from part


def joined(parts: Sequence[Sequence[Session]]) -> Sequence[Session]:
    """The sessions of all parts in order; columns stay columns."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, Requests) for part in parts):
        return Chain(parts)
    return tuple(session for part in parts for session in part)


def split(sessions: Sequence[Session]) -> tuple[Sequence[Session], tuple[Requests, ...]]:
    """(sessions that are objects, those that are columns), order within each kept."""
    parts = sessions.parts if isinstance(sessions, Chain) else (sessions,)
    columns = tuple(part for part in parts if isinstance(part, Requests))
    return joined([part for part in parts if not isinstance(part, Requests)] or [()]), columns
