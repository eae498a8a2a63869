"""The one error that text processing raises for a caller's fault."""

from __future__ import annotations


class TextError(Exception):
    """A request that cannot become a prompt; ``field`` is a path such as ``messages[2].role``,
    ``code`` a word for programs where clients act on one. ``overflow``: tokens of a prompt that is
    too long, and how many may be."""

    def __init__(
        self,
        field: str,
        message: str,
        code: str | None = None,
        overflow: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.code = code
        self.overflow = overflow
