"""What an unlimited cache, shared by all instances, would hold and hit.

A cache of one model is a tree of runs of streams. A run is never split: where other content
follows from within it, a new run hangs from that position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from alipes.replay.traces.form import Branch, Session, Span, reply_stream, stream_id
from alipes.replay.traces.order import causal_order

Position = tuple[int, int]  # of the tree: a run and how many of its tokens lie before


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens of a call's prompt that were computed before: ``total``, and of these what only
    another session had put there (``shared``)."""

    prompt: int
    total: int
    shared: int


@dataclass(slots=True)
class _Path:
    """A context: the tree's position at each of ``lengths`` (rising, from 0)."""

    lengths: list[int] = field(default_factory=lambda: [0])
    positions: list[Position] = field(default_factory=lambda: [(0, 0)])

    def cut(self, kept: int) -> _Path:
        """The path of the first ``kept`` tokens. Each step of a path lies within one run."""
        last = bisect_right(self.lengths, kept)
        path = _Path(self.lengths[:last], self.positions[:last])
        if path.lengths[-1] < kept:
            run, end = self.positions[last]
            path.lengths.append(kept)
            path.positions.append((run, end - (self.lengths[last] - kept)))
        return path


class UnlimitedCache:
    """Of one model."""

    def __init__(self) -> None:
        self._runs: list[Span] = [Span(0, 0, 0)]
        self._owners: list[str] = [""]
        self._next: dict[tuple[int, int, int, int], int] = {}

    def add(self, path: _Path, span: Span, owner: str) -> tuple[int, int]:
        """Lengthens ``path`` by ``span``; how much of it was there, and by whom: (tokens, of
        these not put there by ``owner``)."""
        there = foreign = 0
        stream, start, left = span.stream, span.start, span.length
        while left:
            run, offset = path.positions[-1]
            if not self._goes_on(run, offset, stream, start):
                place = (run, offset, stream, start)
                if place not in self._next:
                    self._next[place] = len(self._runs)
                    self._runs.append(Span(stream, start, left))
                    self._owners.append(owner)
                    self._step(path, self._next[place], left, left)
                    break
                run, offset = self._next[place], 0
            taken = min(left, self._runs[run].length - offset)
            there += taken
            foreign += taken if self._owners[run] != owner else 0
            self._step(path, run, offset + taken, taken)
            start += taken
            left -= taken
        return there, foreign

    def _goes_on(self, run: int, offset: int, stream: int, start: int) -> bool:
        span = self._runs[run]
        return offset < span.length and (span.stream, span.start + offset) == (stream, start)

    def spans(self, path: _Path) -> list[Span]:
        """The content of a path."""
        spans = []
        for i, (run, end) in enumerate(path.positions[1:], 1):
            tokens = path.lengths[i] - path.lengths[i - 1]
            start = self._runs[run].start + end - tokens
            spans.append(Span(self._runs[run].stream, start, tokens))
        return spans

    @staticmethod
    def _step(path: _Path, run: int, offset: int, tokens: int) -> None:
        path.lengths.append(path.lengths[-1] + tokens)
        path.positions.append((run, offset))


def unlimited_hits(sessions: Sequence[Session]) -> list[Hits]:
    """Of every call, session by session, the calls of each in causal order."""
    caches: dict[str, UnlimitedCache] = {}
    return [hits for session in sessions for hits in _Contexts(session, caches).hits()]


class _Contexts:
    """The contexts of one session's branches, as its calls go by."""

    def __init__(self, session: Session, caches: dict[str, UnlimitedCache]) -> None:
        self._session = session
        self._caches = caches
        self._models = {b.name: b.model or session.model for b in session.branches}
        self._paths: dict[str, _Path] = {}
        spawners = {(b.parent, b.spawned_by) for b in session.branches if b.parent}
        self._spawned: dict[tuple[str, int], _Path | None] = dict.fromkeys(spawners)

    def hits(self) -> Iterator[Hits]:
        for number, index in causal_order(self._session):
            yield self._call(self._session.branches[number], index)

    def _call(self, branch: Branch, index: int) -> Hits:
        call = branch.calls[index]
        cache = self._caches.setdefault(self._models[branch.name], UnlimitedCache())
        path, there, foreign = self._kept(branch, index, call.kept, cache)
        reply = Span(reply_stream(branch.name, index), 0, call.output)
        for span in call.added:
            found, others = cache.add(path, self._own(span), self._session.id)
            there += found
            foreign += others
        cache.add(path, self._own(reply), self._session.id)
        self._paths[branch.name] = path
        if (branch.name, index) in self._spawned:
            self._spawned[branch.name, index] = path  # which only grows, or is left for another
        return Hits(call.prompt, there, foreign)

    def _kept(
        self, branch: Branch, index: int, kept: int, cache: UnlimitedCache
    ) -> tuple[_Path, int, int]:
        """The path of what is kept, and how much of that the cache has. The context of a parent
        on another model is not in this model's cache, unless something else put it there."""
        if index:
            path = self._paths[branch.name]
            return (path if kept == path.lengths[-1] else path.cut(kept)), kept, 0
        parents = self._spawned.get((branch.parent, branch.spawned_by))
        if parents is None:
            return _Path(), 0, 0
        known = parents.cut(kept)
        other = self._caches[self._models[branch.parent]]
        if other is cache:
            return known, kept, 0
        path, there, foreign = _Path(), 0, 0
        for span in other.spans(known):
            found, others = cache.add(path, span, self._session.id)
            there += found
            foreign += others
        return path, there, foreign

    def _own(self, span: Span) -> Span:
        """Local streams are the session's alone: in the cache they have a name of its own."""
        if span.stream >= 0:
            return span
        return Span(stream_id("local", self._session.id, span.stream), span.start, span.length)
