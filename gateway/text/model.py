"""All text work of one model: prompts to token ids, token ids to replies."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from alipes.gateway.routing.paths import common_prefix
from alipes.gateway.text.cache import Known, PromptCache, joint, message_keys
from alipes.gateway.text.decode import Decoder, Pieces
from alipes.gateway.text.deltas import OutputParser, PlainParser
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.hermes import HermesParser
from alipes.gateway.text.messages import Message, normalize
from alipes.gateway.text.template import ChatTemplate
from alipes.gateway.text.tokens import NO_CUTS, Encoded, TextEncoder
from alipes.instance.contract import TokenIds

_CACHE_BYTES: Final = 128 << 20
_THREADS: Final = 2
_INLINE: Final = 4096  # characters that are tokenized (in about 2 ms) without another thread


class Prompt(msgspec.Struct, frozen=True, eq=False):
    """Read-only int32 ids of shape (n,); the first ``reused`` were known and not computed. A
    prompt that goes on with this conversation begins with the first ``stem`` of them; 0 where
    these say nothing of a user's."""

    tokens: TokenIds
    reused: int
    stem: int


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ModelText:
    """Used from one event loop. ``context`` and ``vocab_size`` are in tokens."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        stop_ids: tuple[int, ...],
        template: ChatTemplate,
        encoder: TextEncoder,
        pieces: Pieces,
    ) -> None:
        self.name = name
        self.context: int = config["max_position_embeddings"]
        self.vocab_size: int = config["vocab_size"]
        self.stop_ids = stop_ids
        self._template = template
        self._encoder = encoder
        self._pieces = pieces
        self._cache = PromptCache(_CACHE_BYTES)
        self._lead = _lead(template, encoder)
        # Each thread holds the interpreter lock for some milliseconds at the end of a long text.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"tokenize-{name}")

    @staticmethod
    def load(name: str, folder: Path) -> ModelText:
        """Reads a prepared model folder; no weights."""
        config = json.loads((folder / "config.json").read_bytes())
        encoder = TextEncoder.load(folder)
        pieces = Pieces(encoder.tokenizer)
        template = ChatTemplate.load(folder)
        return ModelText(name, config, _stop_ids(folder, config), template, encoder, pieces)

    async def chat(
        self, messages: Sequence[Any], tools: Sequence[Message] | None, tenant: str = ""
    ) -> Prompt:
        """Renders and tokenizes OpenAI messages. The ids are those of tokenizing the whole text;
        what is known of an earlier prompt of the same tenant is not tokenized again.
        Raises ``TextError``."""
        plain = normalize(messages)
        try:
            keys = message_keys(tenant, tools, plain)
        except (UnicodeEncodeError, TypeError, RecursionError) as error:
            raise TextError("messages", f"cannot be read: {error}") from None
        text = self._template.render(plain, tools)
        self._check_length("messages", text)
        known = self._cache.find(keys)
        start, index = joint(known, text) if known else (0, 0)
        if known is None or start < len(text):
            rest = await self._encode(text[start:])
            known = _joined(known, text, start, index, rest)
            self._cache.store(keys, known)
        asked = any(message["role"] == "user" for message in plain)
        return Prompt(known.ids, index, max(0, len(known.ids) - self._lead) if asked else 0)

    async def text(self, prompt: str) -> Prompt:
        """Tokenizes plain text, with what the tokenizer puts around one. Raises ``TextError``."""
        self._check_length("prompt", prompt)
        try:
            encoded = await self._encode(prompt)
        except TextError as error:
            raise TextError("prompt", error.message) from None
        ids = self._encoder.framed(encoded.ids)
        ids.setflags(write=False)
        return Prompt(ids, 0, len(ids))

    def decoder(self) -> Decoder:
        """A new one for each reply."""
        return self._pieces.decoder()

    def piece(self, token_id: int) -> tuple[str, bytes]:
        """Text and exact bytes of one token, for logprobs."""
        return self._pieces.piece(token_id)

    def output(
        self, tools: Sequence[Message] | None, new_id: Callable[[], str] = new_call_id
    ) -> OutputParser:
        """A new parser for one reply; without tools all of it is text."""
        return HermesParser(new_id) if tools else PlainParser()

    def _check_length(self, field: str, text: str) -> None:
        """Spares the work of tokenizing what cannot fit by far."""
        least = len(text) // self._encoder.longest
        if least > self.context:
            raise TextError(
                field,
                f"make at least {least} tokens; the context of {self.name} is {self.context}",
                "context_length_exceeded",
            )

    async def _encode(self, text: str) -> Encoded:
        if len(text) <= _INLINE:
            return self._encoder.encode(text, release=False)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encoder.encode, text, True)


def _lead(template: ChatTemplate, encoder: TextEncoder) -> int:
    """How many ids the template puts at the end to make the assistant speak."""
    sample = [{"role": "user", "content": "a"}]
    try:
        ids, plain = (
            encoder.encode(template.render(sample, None, speaks), release=False).ids
            for speaks in (True, False)
        )
    except TextError:
        return 0
    return len(ids) - common_prefix(ids, plain)


def _joined(known: Known | None, text: str, start: int, index: int, rest: Encoded) -> Known:
    ids, cuts = rest.ids, rest.cuts
    if known is not None and index:
        ids = np.concatenate((known.ids[:index], ids))
        kept = known.cuts[known.cuts[:, 2] < index]
        cuts = np.concatenate((kept, cuts + np.array([start, start, index], np.int32)))
    ids.setflags(write=False)
    return Known(text, ids, cuts if len(cuts) else NO_CUTS)


def _stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """End-of-text ids of the generation config, else of the config."""
    path = folder / "generation_config.json"
    generation = json.loads(path.read_bytes()) if path.is_file() else {}
    found = generation.get("eos_token_id", config.get("eos_token_id"))
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)
