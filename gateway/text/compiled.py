"""Whether a grammar can be used, found before a call is sent anywhere: by compiling it as instances
do, within bounds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from llguidance import LLMatcher, LLTokenizer

LARGEST: Final = 512 << 10
"""Characters of a grammar."""
LONGEST: Final = 2.0
"""Seconds that compiling may take; reading the tokenizer, once, is not counted."""
_KNOWN: Final = 256
_SHOWN: Final = 400


class Compiler:
    """Of one model, used from one event loop; ``read`` makes its tokenizer when the first grammar
    comes, in a thread. What was found is known for the latest grammars."""

    def __init__(self, read: Callable[[], LLTokenizer]) -> None:
        self._read = read
        self._tokenizer: Future[LLTokenizer] | None = None
        self._known: OrderedDict[str, Future[str]] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def problem(self, grammar: str) -> str:
        """What is wrong with it, on one line; empty where nothing is."""
        if len(grammar) > LARGEST:
            return f"makes a grammar of {len(grammar)} characters; {LARGEST} are the most"
        if self._tokenizer is None:
            self._tokenizer = self._threads.submit(self._read)
        tokenizer = await asyncio.wrap_future(self._tokenizer)
        found = self._known.get(grammar)
        if found is None:
            found = self._threads.submit(_problem, grammar, tokenizer)
            self._known[grammar] = found
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(grammar)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(found))
            return await asyncio.wait_for(waiting, LONGEST)
        except TimeoutError:
            return f"makes a grammar that takes more than {LONGEST:g} s to compile"


def _problem(grammar: str, tokenizer: LLTokenizer) -> str:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if not matcher.is_error():
        return ""
    lines = [line.strip() for line in matcher.get_error().splitlines()]
    text = next(filter(None, lines), "it cannot be compiled")
    return f"cannot be made a grammar: {text[:_SHOWN]}"
