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
control tokens are then found here, and the text is encoded by a tokenizer that knows each of them
under another text only, which no client can write. It reads the whole in one pass, as what a
tokenizer makes of a text depends on what is before it: some put a blank before the first only.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, Tokenizer, processors

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
        self.added = frozenset(token.content for token in added.values())
        """The texts of all added tokens."""
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
    def _stand_ins(self) -> _StandIns:
        """Made for the first text in which clients have written a control token."""
        return _StandIns(self.tokenizer, self.control)

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
        stand_ins = self._stand_ins
        places: list[re.Match[str]] = []

        def stood_in(match: re.Match[str]) -> str:
            places.append(match)
            return stand_ins.texts[match[0]]

        shown = unmarked(self.literals.pattern.sub(stood_in, text))
        ids, indices = stand_ins.encode(shown, release)
        rows = [
            (match.start(), match.end() + self._margin, index)
            for match, index in zip(places, indices, strict=True)
            if self.control[match[0]] in self._marks
        ]
        return Encoded(ids, np.array(rows, np.int32) if rows else NO_CUTS)

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


class _StandIns:
    """A tokenizer to which the texts of control tokens are text: it knows the tokens by ``texts``,
    which hold what no client can guess. The model, which is large, is shared."""

    def __init__(self, tokenizer: Tokenizer, control: dict[str, int]) -> None:
        secret = secrets.token_hex(8)
        self.texts = {token: f"\ufdd1{secret}.{i}\ufdd1" for i, token in enumerate(control)}
        self._tokenizer = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._tokenizer.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer.add_tokens([self._known(added[number]) for number in sorted(added)])
        true = {self.texts.get(token.content, token.content): n for n, token in added.items()}
        known = self._tokenizer.get_added_tokens_decoder()
        size = max([self._tokenizer.get_vocab_size(), *known]) + 1
        self._true = np.arange(size, dtype=np.int32)
        self._true[list(known)] = [true[token.content] for token in known.values()]
        self._stands = np.zeros(size, np.bool_)
        written = set(self.texts.values())
        self._stands[[n for n, token in known.items() if token.content in written]] = True

    def encode(self, text: str, release: bool) -> tuple[TokenIds, list[int]]:
        """Ids as the whole tokenizer has them, and where among them stand-ins were."""
        ids = _ids(_encoding(self._tokenizer, text, release).ids)
        return self._true[ids], np.flatnonzero(self._stands[ids]).tolist()

    def _known(self, token: AddedToken) -> AddedToken:
        """The token under the text that stands for it. A normalizer may lose that text, or put
        something before it, so that it would not be found in what is normalized."""
        text = self.texts.get(token.content)
        if text is None:
            return token
        normalizer = self._tokenizer.normalizer
        kept = normalizer is None or all(
            normalizer.normalize_str(one) == one for one in (text, token.content)
        )
        return AddedToken(
            text,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and kept,
            special=token.special,
        )


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
