"""Builds branches call by call, so that each prompt is what its context and its content make it."""

from __future__ import annotations

from alipes.replay.traces.form import MAIN, Branch, Call, Span, Wait, stream_id


class BranchBuilder:
    """One branch."""

    def __init__(self, name: str = MAIN, parent: str = "", spawned_by: int = -1) -> None:
        self._name = name
        self._parent = parent
        self._spawned_by = spawned_by
        self._calls: list[Call] = []

    @property
    def length(self) -> int:
        return len(self._calls)

    def begin(
        self, added: tuple[Span, ...], output: int, gap: float = 0.0, wait: Wait = Wait.START
    ) -> None:
        """The first call, whose prompt is ``added``."""
        self._add(0, added, output, gap, wait, ())

    def extend(
        self,
        added: tuple[Span, ...],
        output: int,
        gap: float,
        wait: Wait = Wait.TOOL,
        joins: tuple[str, ...] = (),
    ) -> None:
        """A call that holds the whole context and ``added`` after it."""
        last = self._calls[-1]
        self._add(last.prompt + last.output, added, output, gap, wait, joins)

    def append(self, new: int, output: int, gap: float) -> None:
        """A call with ``new`` tokens of its own after the whole context, if there is one."""
        if self._calls:
            self.extend((self.local(new),), output, gap)
        else:
            self.begin((self.local(new),), output, gap)

    def rewrite(self, kept: int, new: int, output: int, gap: float) -> None:
        """A call that holds the first ``kept`` tokens of the context and then something else."""
        self._add(kept, (self.local(new),), output, gap, Wait.TOOL, ())

    def local(self, length: int) -> Span:
        """Content of the session alone, of the call to come."""
        return Span(stream_id("input", self._name, len(self._calls), local=True), 0, length)

    def branch(self) -> Branch:
        return Branch(self._name, tuple(self._calls), self._parent, self._spawned_by)

    def _add(
        self,
        kept: int,
        added: tuple[Span, ...],
        output: int,
        gap: float,
        wait: Wait,
        joins: tuple[str, ...],
    ) -> None:
        prompt = kept + sum(span.length for span in added)
        self._calls.append(Call(prompt, output, kept, added, gap, wait, joins))
