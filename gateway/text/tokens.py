"""Text to token ids, with the places where a later text that begins alike may be joined on.

A *cut* is a row ``(start, need, index)``: where two texts agree in their first ``need``
characters, the ids of the second are the first ``index`` ids of the first, followed by the ids of
the second's characters from ``start`` on. There are two kinds:

- The start of an added token that is matched before anything else happens to the text. The scan
  for such tokens forgets what it has passed, so it goes on from there as it would have.
- A place between two pre-tokenizer splits where a word meets a blank. No splitting rule in use
  looks past a blank after a word, so nothing before depends on what follows. These are kept only
  where no added token is near the end, and only for pre-tokenizers made of known parts.

``need`` reaches one longest added token beyond, as another such token could begin before the cut.

A text may have marks that keep control tokens out of what clients write (see ``literal.py``). Its
control tokens are then found here, and what is between them is encoded by a tokenizer that knows
none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, processors

from alipes.gateway.text.errors import TextError
from alipes.gateway.text.literal import SIGN, Literals, is_control, unmarked
from alipes.instance.contract import TokenIds

Cuts = NDArray[np.int32]
NO_CUTS: Final = np.empty((0, 3), np.int32)
_SPLITTERS: Final = {"Sequence", "Split", "Digits", "Punctuation", "ByteLevel"}


class Encoded(NamedTuple):
    """int32 ids of shape (n,) and the cuts in ascending order, shape (k, 3)."""

    ids: TokenIds
    cuts: Cuts


class TextEncoder:
    """A tokenizer that reports cuts. ``encode`` may be called from any thread. Splits serve as
    cuts where the last added token is more than ``far`` characters before the end. No token stands
    for more than ``longest`` characters. ``control`` are its control tokens by their texts."""

    def __init__(self, tokenizer: Tokenizer, far: int = 1024) -> None:
        self._far = far
        tokenizer.no_truncation()
        tokenizer.no_padding()
        sample = tokenizer.encode("a")
        inner = [i for i, special in enumerate(sample.special_tokens_mask) if not special]
        self._head = _ids(sample.ids[: inner[0]])
        self._tail = _ids(sample.ids[inner[-1] + 1 :])
        # What the post-processor adds is known now; without it offsets are those of the splits.
        tokenizer.post_processor = processors.Sequence([])
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        control = {token.content: number for number, token in added.items()}
        self.control = {text: number for text, number in control.items() if is_control(text)}
        self.literals = Literals(self.control)
        self._strips = {token.content: (token.lstrip, token.rstrip) for token in added.values()}
        self._margin = max((len(token.content) for token in added.values()), default=0) + 1
        self._marks = {
            number: token.content
            for number, token in added.items()
            if not token.normalized and not token.single_word
        }
        # NFC makes at most three characters one; no other normalizer in use shortens more.
        self.longest = 3 * max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
        self._is_mark = np.zeros(max([tokenizer.get_vocab_size(), *added]) + 1, np.bool_)
        self._is_mark[list(self._marks)] = True
        self._splits = _splits_are_local(json.loads(tokenizer.to_str()))

    @cached_property
    def _plain(self) -> Tokenizer:
        """The same tokenizer to which control tokens are text; made for the first text in which
        clients have written one, as it takes as long as reading the tokenizer."""
        described = json.loads(self.tokenizer.to_str())
        added = [one for one in described["added_tokens"] if one["content"] not in self.control]
        return Tokenizer.from_str(json.dumps({**described, "added_tokens": added}))

    @property
    def added(self) -> frozenset[str]:
        """The texts of all added tokens."""
        return frozenset(self._strips)

    @staticmethod
    def load(folder: Path) -> TextEncoder:
        return TextEncoder(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def encode(self, text: str, release: bool) -> Encoded:
        """Ids without what the model wants around a whole text. ``release`` lets other threads run
        meanwhile, which costs a little. Raises ``TextError`` on lone surrogates."""
        if SIGN in text:
            return self._marked(text, release)
        encoding = _encoding(self.tokenizer, text, release)
        ids = _ids(encoding.ids)
        return Encoded(ids, self._cuts(encoding, text, ids))

    def _marked(self, text: str, release: bool) -> Encoded:
        ids: list[int] = []
        rows: list[tuple[int, int, int]] = []
        end = 0
        rstrip = False
        for match in self.literals.pattern.finditer(text):
            token = match[0]
            lstrip, following = self._strips[token]
            ids += self._between(text[end : match.start()], rstrip, lstrip, release)
            number = self.control[token]
            if number in self._marks:
                rows.append((match.start(), match.end() + self._margin, len(ids)))
            ids.append(number)
            end, rstrip = match.end(), following
        ids += self._between(text[end:], rstrip, False, release)
        return Encoded(_ids(ids), np.array(rows, np.int32) if rows else NO_CUTS)

    def _between(self, text: str, lstrip: bool, rstrip: bool, release: bool) -> list[int]:
        """Ids of what is between two control tokens, which may take the blanks beside them."""
        text = text.lstrip() if lstrip else text
        text = text.rstrip() if rstrip else text
        return _encoding(self._plain, unmarked(text), release).ids if text else []

    def framed(self, ids: TokenIds) -> TokenIds:
        """``ids`` of a whole text between the ids that the tokenizer adds around one."""
        return np.concatenate((self._head, ids, self._tail))

    def _cuts(self, encoding: Encoding, text: str, ids: TokenIds) -> Cuts:
        rows: list[tuple[int, int, int]] = []
        end = first = 0
        for index in np.flatnonzero(self._is_mark[ids]).tolist():
            span = encoding.token_to_chars(index)
            if span is None or text[span[0] : span[1]].strip() != self._marks[int(ids[index])]:
                continue
            start, end = span
            first = index + 1
            rows.append((start, end + self._margin, index))
        if self._splits and len(text) - end > self._far:
            rows.extend(self._blanks(encoding, text, first))
        return np.array(rows, np.int32) if rows else NO_CUTS

    def _blanks(self, encoding: Encoding, text: str, first: int) -> Iterator[tuple[int, int, int]]:
        offsets, words = encoding.offsets, encoding.word_ids
        for index in range(first + 1, len(words)):
            if words[index] == words[index - 1]:
                continue
            start = offsets[index][0]
            if start and text[start] in " \n" and not text[start - 1].isspace():
                yield start, start + 1 + self._margin, index


def _encoding(tokenizer: Tokenizer, text: str, release: bool) -> Encoding:
    try:
        if release:
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return tokenizer.encode(text, add_special_tokens=False)
    except TypeError:
        raise TextError("messages", "holds text that is not valid Unicode") from None


def _ids(ids: list[int]) -> TokenIds:
    return np.array(ids, np.int32)


def _splits_are_local(tokenizer: dict[str, Any]) -> bool:
    """Whether the pre-tokenizer splits, adds nothing, and reads text that is not rewritten."""
    normalizer, splitter = tokenizer["normalizer"], tokenizer["pre_tokenizer"]
    if splitter is None or (normalizer is not None and normalizer["type"] != "NFC"):
        return False
    parts = [splitter, *splitter.get("pretokenizers", ())]
    return all(p["type"] in _SPLITTERS and not p.get("add_prefix_space", False) for p in parts)
