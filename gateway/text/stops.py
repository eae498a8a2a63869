"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on until a stop string is complete; the stop string itself is dropped.

    Of several matches the one that is complete first wins, and among those the one that begins
    first, so that the outcome does not depend on how the text arrives. Text that may be the
    beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None
        self.dropped = 0
        """Characters that came from where the stop string begins on."""

    def push(self, text: str) -> str:
        """What may be emitted now; nothing any more once a stop string matched."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            self.dropped = len(text) - at
            return text[:at]
        keep = max(partial_suffix(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The held-back text, once no more can come."""
        held, self._held = self._held, ""
        return held


def partial_suffix(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that ``word`` begins with, and does not end with."""
    longest = min(len(word) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
