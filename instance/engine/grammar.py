"""Which tokens a call's grammar allows, found in threads beside the computing of its step.

A matcher follows a call by the tokens that it has drawn. It is no state of the call's: wherever the
call goes on, it is made anew from the grammar and those tokens.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from alipes.instance.engine.protocol import Draw, EngineError, Row

Allowed = Mapping[int, NDArray[np.bool_]]
"""By the number of a draw in its step, the tokens (vocab,) that it may be; without those that may
be any."""
NOTHING_MASKED: Final[Allowed] = MappingProxyType({})
_THREADS: Final = 2
_COMPILED: Final = 64
"""So many grammars stay compiled, the latest used."""


class Vocabulary:
    """The tokens of a model's folder as matchers know them, read when the first is needed.
    ``size`` is that of the logits."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size: Final = size
        self._folder = folder
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the grammar's beginning. Raises ``GrammarError``."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read()
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the grammar cannot be compiled: {matcher.get_error()}")
        return matcher

    def _read(self) -> LLTokenizer:
        file = self._folder / "tokenizer.json"
        if not file.is_file():
            raise GrammarError(f"{file} is missing: without it no grammar can be followed")
        text = file.read_text()
        known = json.loads(text)
        tokens = 1 + max(
            max(_ids(known["model"]["vocab"]), default=0),
            max((token["id"] for token in known["added_tokens"]), default=0),
        )
        ends = _ends(self._folder) or None
        try:
            return LLTokenizer(text, n_vocab=max(tokens, self.size), eos_token=ends)
        except ValueError as error:
            raise GrammarError(f"{file} cannot be used for grammars: {error}") from None


class GrammarError(Exception):
    """A grammar is none, or a call's tokens are not of it."""


@dataclass(slots=True)
class _Follower:
    """The matcher of one call, which has taken in the first ``taken`` of its drawn tokens."""

    compiled: Future[LLMatcher]
    size: int
    matcher: LLMatcher | None = None
    taken: int = 0
    lock: Lock = field(default_factory=Lock)

    def allowed(self, draw: Draw) -> NDArray[np.bool_]:
        """(vocab,) after all of the draw's history. Raises ``GrammarError``."""
        with self.lock:
            if self.matcher is None or self.taken > len(draw.history) - draw.prompt_tokens:
                self.matcher, self.taken = self.compiled.result().deep_copy(), 0
            self._take(self.matcher, draw.history[draw.prompt_tokens + self.taken :].tolist())
            bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self.size, bitorder="little").view(np.bool_)
            if self.matcher.is_error() or not allowed.any():
                reason = self.matcher.get_error() or "no token is allowed"
                raise GrammarError(f"its grammar leads nowhere: {reason}")
            return allowed

    def _take(self, matcher: LLMatcher, tokens: list[int]) -> None:
        """Whatever follows the end (a call may have no stop id) is not looked at."""
        for token in tokens:
            if not matcher.is_stopped() and not matcher.consume_token(token):
                raise GrammarError(f"token {token} is not one that its grammar allows there")
            self.taken += 1


class Masks:
    """What grammars allow in one step, on its way."""

    def __init__(self, found: Mapping[int, tuple[bytes, Future[NDArray[np.bool_]]]]) -> None:
        self._found = found

    def take(self) -> Allowed:
        """Waits for all. Raises ``EngineError`` that names the calls at fault."""
        allowed, wrong = {}, {}
        for at, (call_id, mask) in self._found.items():
            try:
                allowed[at] = mask.result()
            except GrammarError as error:
                wrong[call_id] = str(error)
        if wrong:
            raise EngineError("; ".join(dict.fromkeys(wrong.values())), tuple(wrong))
        return allowed


class Grammars:
    """Of all models of an engine, by name; used from the engine's thread. Matchers of some more
    calls are kept than the ``running`` that decode together; another one is made anew."""

    def __init__(self, vocabularies: Mapping[str, Vocabulary], running: int) -> None:
        self._vocabularies = vocabularies
        self._kept = max(64, 4 * running)
        self._compiled: OrderedDict[tuple[str, str], Future[LLMatcher]] = OrderedDict()
        self._followers: OrderedDict[bytes, _Follower] = OrderedDict()
        # What takes long to compile keeps only those waiting that need it.
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="grammar-compile")
        self._masking = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar-mask")

    def expect(self, model: str, grammar: str) -> None:
        """Begin to compile it."""
        self._matcher(model, grammar)

    def begin(self, model: str, rows: Sequence[Row]) -> Masks | None:
        """Begin to find what the draws of a step may be; None where that is anything."""
        found = {}
        draws = ((row.call_id, row.draw) for row in rows if row.draw is not None)
        for at, (call_id, draw) in enumerate(draws):
            if draw.sampling.grammar:
                follower = self._follower(model, call_id, draw.sampling.grammar)
                found[at] = (call_id, self._masking.submit(follower.allowed, draw))
        return Masks(found) if found else None

    def close(self) -> None:
        for pool in (self._compiling, self._masking):
            pool.shutdown(wait=False, cancel_futures=True)
        self._followers.clear()
        self._compiled.clear()

    def _follower(self, model: str, call_id: bytes, grammar: str) -> _Follower:
        follower = self._followers.get(call_id)
        if follower is None:
            size = self._vocabularies[model].size
            follower = _Follower(self._matcher(model, grammar), size)
            self._followers[call_id] = follower
            if len(self._followers) > self._kept:
                self._followers.popitem(last=False)
        self._followers.move_to_end(call_id)
        return follower

    def _matcher(self, model: str, grammar: str) -> Future[LLMatcher]:
        key = (model, grammar)
        made = self._compiled.get(key)
        if made is None:
            made = self._compiling.submit(self._vocabularies[model].compile, grammar)
            self._compiled[key] = made
            if len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return made


def _ids(vocabulary: Any) -> list[int]:
    """Of all tokens of a tokenizer's model, which has them by their text or in their order."""
    if isinstance(vocabulary, dict):
        return list(vocabulary.values())
    return [len(vocabulary) - 1]


def _ends(folder: Path) -> list[int]:
    """The ids that end a text: those of the generation config, else of the config."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_bytes()).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return found if isinstance(found, list) else [int(found)]
    return []
