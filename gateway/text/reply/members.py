"""The arguments of a call that a model writes value by value, passed on as one JSON object."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.source import Source, quoted
from alipes.gateway.text.reply.values import kinds, members_in, value_of


class Members:
    """Of a call to ``name``, whose schema among ``tools`` says of what type values are. What may be
    a string is one, but for a ``null`` that is allowed as well."""

    def __init__(self, source: Source, name: str, tools: Sequence[Tool]) -> None:
        self._source = source
        self._schema = next((tool.parameters for tool in tools if tool.name == name), {})
        self._named = members_in(self._schema).schemas
        self._opened = False

    def value(self, key: str, closing: str, *, lines: bool) -> Generator[None, None, bool]:
        """Read a value up to its ``closing`` tag; with ``lines`` the line ends beside the tags are
        not part of it. A string is passed on as it comes. False if the reply ends before."""
        source = self._source
        source.argue(f'{", " if self._opened else "{"}"{quoted(key)}": ')
        self._opened = True
        if lines:
            yield from source.skip("\n")
        endings = (f"\n{closing}", closing) if lines else (closing,)
        allowed = kinds((self._named or {}).get(key), self._schema)
        if "null" in allowed and (yield from self._null(endings)):
            return True
        if "string" in allowed:
            source.argue('"')
            found, _ = yield from source.until(*endings, emit=lambda t: source.argue(quoted(t)))
            source.argue('"' if found else "")
        else:
            text: list[str] = []
            found, _ = yield from source.until(*endings, emit=text.append)
            source.argue(value_of("".join(text), allowed) if found else "")
        if found is None:
            source.end(whole=False)
        return found is not None

    def _null(self, endings: Sequence[str]) -> Generator[None, None, bool]:
        """Read a null and its ending, if that is what comes."""
        for ending in endings:
            if (yield from self._source.skip(f"null{ending}")):
                self._source.argue("null")
                return True
        return False

    def close(self) -> None:
        """The call is whole."""
        self._source.argue("}" if self._opened else "{}")
        self._source.end(whole=True)
