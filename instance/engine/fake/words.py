"""Which token ids the fake engine draws, so that its output reads as words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from alipes.instance.contract import TokenIds

BARE_CONTEXT = 32768
BARE_VOCABULARY = 49152
_WORD = re.compile("[\u0120\u2581][a-z]{2,}")


def words_of(folder: Path) -> tuple[TokenIds, int]:
    """Ids (n,) int32 of the lower-case words of the folder's tokenizer, each with a space
    before it, and the size of its vocabulary. Without a tokenizer every id is a word."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return np.arange(BARE_VOCABULARY, dtype=np.int32), BARE_VOCABULARY
    vocabulary = Tokenizer.from_file(str(file)).get_vocab()
    ids = sorted(i for piece, i in vocabulary.items() if _WORD.fullmatch(piece))
    if not ids:
        ids = sorted(vocabulary.values())
    return np.asarray(ids, np.int32), max(vocabulary.values()) + 1


def context_of(folder: Path) -> int:
    """The context length that the folder's config states."""
    file = folder / "config.json"
    if not file.is_file():
        return BARE_CONTEXT
    config: dict[str, Any] = json.loads(file.read_text())
    return int(config.get("max_position_embeddings", BARE_CONTEXT))
