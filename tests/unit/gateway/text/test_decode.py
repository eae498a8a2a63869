from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from alipes.gateway.text.decode import Pieces, WindowDecoder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Words that begin with U+2581, and bytes: the other common form of vocabulary."""
    names = ["<unk>", "\u2581Hello", "\u2581wor", "ld", *[f"<0x{b:02X}>" for b in range(256)]]
    made = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, [], byte_fallback=True))
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["</s>"])
    return made


def test_a_vocabulary_of_words_and_bytes(tokenizer: Tokenizer) -> None:
    ids = [1, 2, 3, *[4 + b for b in "é😀".encode()], 2, tokenizer.token_to_id("</s>"), 3]
    decoder = Pieces(tokenizer).decoder()
    assert isinstance(decoder, WindowDecoder)
    parts = [decoder.push([i]) for i in ids]
    assert "".join(parts) + decoder.finish() == tokenizer.decode(ids) == "Hello worldé😀 world"
    assert not any("\ufffd" in part for part in parts)
    assert parts[:3] == ["Hello", " wor", "ld"]


def test_special_tokens_are_shown_where_they_must_be(tokenizer: Tokenizer) -> None:
    tag = tokenizer.token_to_id("</s>")
    decoder = Pieces(tokenizer).showing({"</s>", "<none>"}).decoder()
    parts = [decoder.push([i]) for i in [1, tag, 2, 3, tag]]
    assert parts == ["Hello", "</s>", " wor", "ld", "</s>"]
    decoder = Pieces(tokenizer).decoder()
    assert [decoder.push([i]) for i in [tag, 1, tag, 2]] == ["", "Hello", "", " wor"]


def test_an_unfinished_character_appears_at_the_end(tokenizer: Tokenizer) -> None:
    decoder = Pieces(tokenizer).decoder()
    assert decoder.push([1, 4 + 0xC3]) == "Hello"
    assert decoder.finish() == "\ufffd"


def test_pieces(tokenizer: Tokenizer) -> None:
    pieces = Pieces(tokenizer)
    assert pieces.piece(2) == (" wor", b" wor")
    assert pieces.piece(4 + 0xC3) == ("\ufffd", b"\xc3")
    assert pieces.piece(10_000) == ("", b"")
