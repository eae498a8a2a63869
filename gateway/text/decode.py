"""Token ids to text, as they come, never in the middle of a character."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Sequence
from typing import Protocol

from tokenizers import Tokenizer


class Decoder(Protocol):
    """Turns the ids of one reply into text; special tokens are left out unless shown. What
    ``push`` and a last ``finish`` return is together what the tokenizer decodes from all the
    ids."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class Pieces:
    """The bytes of every token of a tokenizer, and decoders for replies."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        self._bytes = _byte_table(tokenizer)
        self._visible = self._shown()

    def showing(self, tokens: Collection[str]) -> Pieces:
        """The same, with these special tokens in the text of replies."""
        self._special -= {self._tokenizer.token_to_id(token) for token in tokens}
        self._visible = self._shown()
        return self

    def _shown(self) -> list[bytes]:
        return [
            b"" if number in self._special else piece for number, piece in enumerate(self._bytes)
        ]

    def piece(self, token_id: int) -> tuple[str, bytes]:
        """Text (with replacement characters for broken UTF-8) and exact bytes of one token; an
        id that no token has, as models with padded vocabularies may draw, is empty."""
        if self._bytes:
            raw = self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""
            return raw.decode("utf-8", "replace"), raw
        name = self._tokenizer.id_to_token(token_id) or ""
        if len(name) == 6 and name.startswith("<0x"):
            raw = bytes.fromhex(name[3:5])
            return raw.decode("utf-8", "replace"), raw
        text = name.replace("\u2581", " ")
        return text, text.encode()

    def decoder(self) -> Decoder:
        if self._bytes:
            return ByteDecoder(self._visible)
        return WindowDecoder(self._tokenizer, self._special)


class ByteDecoder:
    """For byte-level vocabularies: a table of bytes and Python's incremental UTF-8 decoder."""

    def __init__(self, visible: Sequence[bytes]) -> None:
        self._visible = visible
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        visible, count = self._visible, len(self._visible)
        return self._utf8.decode(b"".join(visible[i] for i in ids if i < count))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For any other vocabulary: decodes a few ids again and emits what is new, once complete. Ids
    that are ``hidden`` have no text."""

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._ids: list[int] = []
        self._emitted = 0  # ids whose text has been emitted; those before are context

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(self._next, ids))

    def finish(self) -> str:
        return self._fresh()

    def _next(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        fresh = self._fresh()
        if not fresh or fresh.endswith("\ufffd"):
            return ""
        self._ids = self._ids[self._emitted :]
        self._emitted = len(self._ids)
        return fresh

    def _fresh(self) -> str:
        context = self._decoded(self._ids[: self._emitted])
        return self._decoded(self._ids)[len(context) :]

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _byte_table(tokenizer: Tokenizer) -> list[bytes]:
    """Bytes by token id for a byte-level tokenizer, otherwise an empty list."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None or decoder["type"] != "ByteLevel":
        return []
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    letters = _letters()
    for name, number in vocabulary.items():
        try:
            table[number] = bytes([letters[letter] for letter in name])
        except KeyError:
            table[number] = name.encode()
    return table


def _letters() -> dict[str, int]:
    """Byte-level BPE writes a printable Latin-1 byte as itself, and the rest, in order, as the
    letters from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
