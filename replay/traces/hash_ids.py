"""From hash ids, which name the blocks of a prompt, to kept tokens and added spans.

Block i of id h is the beginning of h's own stream, except where the block holds a reply: a call
goes on after the reply before it if its prompt holds all full blocks of the previous prompt and
is at least as long as that prompt and the reply. From then on that id means the reply's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from alipes.replay.traces.form import Span, stream_id
from alipes.replay.traces.spans import cut, one

BLOCK: Final = 512


class BlockNames(dict[int, Span]):
    """The content of each id of a file, or with ``local`` of each session of it, by block of
    ``size`` tokens. ``scope`` tells one file's ids from another's."""

    def __init__(self, size: int, scope: str, local: bool = False) -> None:
        super().__init__()
        self.size, self._scope, self._local = size, scope, local

    def __missing__(self, hash_id: int) -> Span:
        span = Span(stream_id("block", self._scope, hash_id, local=self._local), 0, self.size)
        self[hash_id] = span
        return span


@dataclass(frozen=True, slots=True)
class Context:
    """A branch after a call. ``tail`` is the content of the prompt's last, partial block;
    ``reply`` the stream of the reply."""

    ids: Sequence[int]
    prompt: int
    output: int
    tail: tuple[Span, ...]
    reply: int


class SessionBlocks:
    """What the hash ids of one session's calls mean."""

    def __init__(self, names: BlockNames) -> None:
        self._names = names
        self._replies: dict[int, tuple[Span, ...]] = {}

    def kept(
        self, context: Context | None, ids: Sequence[int], prompt: int, reset: bool = False
    ) -> int:
        """How many tokens of ``context`` begin a prompt; without ids all of them if they fit.
        ``reset``: the prompt does not go on after the reply."""
        if context is None:
            return 0
        size = self._names.size
        full = context.prompt // size
        same = _common(context.ids, ids, min(full, prompt // size))
        held = same == full or not (ids or context.ids)
        if held and not reset and prompt >= context.prompt + context.output:
            return context.prompt + context.output
        return same * size

    def call(
        self, context: Context | None, ids: Sequence[int], kept: int, prompt: int, new: int
    ) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """(added spans, tail of the prompt's last block). Tokens that no id names are those of
        stream ``new``."""
        size = self._names.size
        added = self.content(ids, kept, prompt, new)
        if context is None or kept <= context.prompt:
            last = prompt // size * size
            return added, cut(added, last - kept, prompt - kept)
        known = (*context.tail, *one(context.reply, context.output), *added)
        first = context.prompt // size
        for number in range(first, min(-(-kept // size), prompt // size, len(ids))):
            at = (number - first) * size
            self._replies.setdefault(ids[number], cut(known, at, at + size))
        at = (prompt // size - first) * size
        return added, cut(known, at, at + size)

    def content(self, ids: Sequence[int], start: int, stop: int, new: int) -> tuple[Span, ...]:
        """Tokens ``start`` to ``stop`` of a prompt with these ids."""
        size, names = self._names.size, self._names
        named = min(stop, len(ids) * size)
        spans: list[Span] = []
        first, full = -(-start // size), named // size
        if start < named and first * size > start:
            spans += self._part(ids[first - 1], start % size, min(size, named - (first - 1) * size))
        if self._replies:
            for hash_id in ids[first:full]:
                spans += self._replies.get(hash_id) or (names[hash_id],)
        else:
            spans += [names[hash_id] for hash_id in ids[first:full]]
        if full >= first and named % size and named > start:
            spans += self._part(ids[full], 0, named % size)
        return (*spans, *one(new, stop - max(named, start)))

    def _part(self, hash_id: int, start: int, stop: int) -> tuple[Span, ...]:
        return cut(self._replies.get(hash_id) or (self._names[hash_id],), start, stop)


def _common(one_way: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many of the first ``most`` ids are the same."""
    if one_way[:most] == other[:most]:
        return min(most, len(one_way), len(other))
    pairs = enumerate(zip(one_way[:most], other[:most], strict=False))
    shorter = min(most, len(one_way), len(other))
    return next((i for i, (left, right) in pairs if left != right), shorter)
