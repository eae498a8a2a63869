"""Content as spans: parts of it, and blocks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from alipes.replay.traces.form import Span, stream_id


def new_content(branch: str, index: int) -> int:
    """The stream of what only call ``index`` of a branch brings; local to the session."""
    return stream_id("new", branch, index, local=True)


def one(stream: int, length: int, start: int = 0) -> tuple[Span, ...]:
    """``length`` tokens of a stream; no span if there are none."""
    return (Span(stream, start, length),) if length > 0 else ()


def cut(spans: Iterable[Span], start: int, stop: int) -> tuple[Span, ...]:
    """Tokens ``start`` to ``stop`` of the content that the spans make together."""
    parts, position = [], 0
    for span in spans:
        low, high = max(start - position, 0), min(stop - position, span.length)
        if low < high:
            parts.append(Span(span.stream, span.start + low, high - low))
        position += span.length
        if position >= stop:
            break
    return tuple(parts)


def blocks(spans: Sequence[Span], size: int) -> Iterator[tuple[Span, ...]]:
    """The content in blocks of ``size`` tokens, the last one perhaps shorter; spans that go on
    where the one before ended are one, so that equal blocks compare equal."""
    block: list[Span] = []
    room = size
    for span in spans:
        start, left = span.start, span.length
        while left:
            taken = min(left, room)
            last = block[-1] if block else None
            if last and last.stream == span.stream and last.start + last.length == start:
                block[-1] = Span(span.stream, last.start, last.length + taken)
            else:
                block.append(Span(span.stream, start, taken))
            start, left, room = start + taken, left - taken, room - taken
            if not room:
                yield tuple(block)
                block, room = [], size
    if block:
        yield tuple(block)
