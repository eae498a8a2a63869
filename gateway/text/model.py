"""All text work of one model: prompts to token ids, token ids to replies."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
import numpy as np
from llguidance import LLTokenizer

from alipes.gateway.conversation.message import Conversation, Message, Tool, arranged
from alipes.gateway.routing.paths import common_prefix
from alipes.gateway.text.cache import Known, PromptCache, joint, message_keys
from alipes.gateway.text.compiled import Compiler
from alipes.gateway.text.decode import Decoder, Pieces
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.grammar import grammar_of
from alipes.gateway.text.literal import SIGN
from alipes.gateway.text.loosened import OPEN, loosened
from alipes.gateway.text.rendering import Rendered, rendered
from alipes.gateway.text.reply.deltas import OutputParser
from alipes.gateway.text.reply.family import ReplyForm, form_of
from alipes.gateway.text.rules import Answer, Speech, Unspeakable, Wish
from alipes.gateway.text.template import ChatTemplate
from alipes.gateway.text.tokens import NO_CUTS, Encoded, TextEncoder
from alipes.instance.contract import TokenIds

_CACHE_BYTES: Final = 128 << 20
_THREADS: Final = 2
_LONG: Final = 8  # characters for every token of the context, where a text is surely too long
_TAIL: Final = 256  # characters at whose end a prompt may have the model think
_INLINE: Final = 4096  # characters that are tokenized (in about 2 ms) without another thread
_MANY: Final = 1024  # messages that are hashed and shown to a template without another thread
_NEW: Final = 1 << 16  # characters that are looked through without another thread
T = TypeVar("T")
P = ParamSpec("P")


class Prompt(msgspec.Struct, frozen=True, eq=False):
    """Read-only int32 ids of shape (n,); the first ``reused`` were known and not computed. A
    prompt that goes on with this conversation begins with the first ``stem`` of them; 0 where
    these say nothing of a user's. ``opened`` where it ends in what the model thinks."""

    tokens: TokenIds
    reused: int
    stem: int
    opened: bool = False


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
        self._form = form_of(template.source, encoder.added, hermes=template.tells_calls)
        self._pieces = pieces.showing(self._form.visible)
        self._cache = PromptCache(_CACHE_BYTES)
        self._lead = _lead(template, encoder)
        self._speech = _speech(template, self._form, encoder)
        self._compiler = Compiler(self._tokenizer)
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

    async def chat(self, conversation: Conversation, tenant: str = "") -> Prompt:
        """Renders and tokenizes a conversation. The ids are those of tokenizing the whole text;
        what is known of an earlier prompt of the same tenant is not tokenized again.
        Raises ``TextError``."""
        await self._check_fits(conversation)
        many = len(conversation.messages) > _MANY
        conversation, keys = await self._apart(many, _keyed, conversation, tenant)
        known, count = self._cache.find(keys)
        clear = set(keys[:count]) - known.marked if known is not None else set()
        made = await self._apart(
            many or _new(conversation, keys, clear) > _NEW,
            rendered,
            self._template,
            self._encoder.literals,
            conversation,
            keys,
            clear,
        )
        await self._check_length("messages", made.text)
        start, index = joint(known, made.text) if known else (0, 0)
        if known is None or start < len(made.text):
            rest = await self._encode(made.text[start:])
            known = _joined(known, made, start, index, rest)
            if len(known.ids) <= self.context:
                self._cache.store(keys, known)
        opened = not conversation.continues and self._form.opened(made.text[-_TAIL:])
        return Prompt(known.ids, index, self._stem(conversation, known), opened)

    def _stem(self, conversation: Conversation, known: Known) -> int:
        if not any(message.role == "user" for message in conversation.messages):
            return 0
        if conversation.continues:
            return int(known.cuts[-1, 2]) if len(known.cuts) else 0
        return max(0, len(known.ids) - self._lead)

    async def text(self, prompt: str) -> Prompt:
        """Tokenizes plain text, with what the tokenizer puts around one. Raises ``TextError``."""
        await self._check_length("prompt", prompt)
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
        self,
        tools: Sequence[Tool],
        opened: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> OutputParser:
        """A new parser for one reply; without tools none of it is a call. ``opened`` where the
        prompt ends in what the model thinks."""
        return self._form.parser(tools, opened, new_id)

    async def grammar(self, wish: Wish) -> str:
        """The grammar of a reply, for ``contract.Sampling``; empty where there is none and ``wish``
        is not binding. Of schemas that are not strict what cannot be kept to is ignored. Raises
        ``TextError`` without a field."""
        grammar, problem = await self._tried(wish)
        if problem:
            grammar, again = await self._tried(await self._loosened(wish))
            problem = again and problem
        if problem and wish.binding:
            raise TextError("", problem, "unsupported")
        return "" if problem else grammar

    async def _tried(self, wish: Wish) -> tuple[str, str]:
        """Its grammar, and what is wrong with it."""
        try:
            grammar = grammar_of(wish, self._speech)
        except Unspeakable as error:
            return "", str(error)
        return grammar, await self._compiler.problem(grammar)

    async def _loosened(self, wish: Wish) -> Wish:
        """The wish with less of those schemas that make no grammar, or with nothing."""
        made = []
        for function in wish.functions:
            for schema in (function.parameters, loosened(function.parameters), OPEN):
                one = replace(function, parameters=schema)
                _, problem = await self._tried(Wish((one,), must_call=True))
                if not problem or one.strict or one.freeform:
                    break
            made.append(one)
        answer = wish.answer
        if answer is not None and not answer.strict:
            for schema in (answer.schema, loosened(answer.schema), {}):
                answer = Answer(schema)
                _, problem = await self._tried(Wish(answer=answer))
                if not problem:
                    break
        return replace(wish, functions=tuple(made), answer=answer)

    def _tokenizer(self) -> LLTokenizer:
        tokenizer = self._encoder.tokenizer
        size = max(self.vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
        return LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=list(self.stop_ids) or None)

    async def _check_fits(self, conversation: Conversation) -> None:
        """Spares the work of rendering what cannot fit: every message, call and tool makes a token
        at least, and what others than the assistant wrote is all shown."""
        messages = conversation.messages
        count = len(messages) + len(conversation.tools)
        count += sum(len(message.calls) for message in messages)
        if count > self.context:
            raise self._overflow("messages", f"at least {count}", count)
        texts = [message.text for message in messages if message.role != "assistant"]
        if sum(map(len, texts)) > _LONG * self.context:
            await self._check_length("messages", "".join(texts).replace(SIGN, ""))

    def _overflow(self, field: str, told: str, tokens: int) -> TextError:
        message = f"make {told} tokens; the context of {self.name} is {self.context}"
        return TextError(field, message, overflow=(tokens, self.context))

    async def _check_length(self, field: str, text: str) -> None:
        """Spares the work of tokenizing what cannot fit by far: the tokens of its first pieces are
        counted until they are too many. Then the error tells how many there are about."""
        if len(text) <= _LONG * self.context:
            return
        piece = max(_INLINE, self.context)
        count = 0
        for start in range(0, len(text), piece):
            count += len((await self._encode(text[start : start + piece])).ids)
            if count > self.context:
                about = count * len(text) // (start + piece)
                raise self._overflow(field, f"about {about}", about)

    async def _encode(self, text: str) -> Encoded:
        long = len(text) > _INLINE
        return await self._apart(long, self._encoder.encode, text, long)

    async def _apart(
        self, apart: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``work`` makes, ``apart`` from the loop where that takes long."""
        if not apart:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *args, **kwargs))


def _keyed(conversation: Conversation, tenant: str) -> tuple[Conversation, list[int]]:
    """With its messages arranged, and the keys of its parts. Raises ``TextError``."""
    messages = arranged(conversation.messages)
    try:
        keys = message_keys(tenant, conversation.tools, messages)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise TextError("messages", f"cannot be read: {error}") from None
    return replace(conversation, messages=messages), keys


def _new(conversation: Conversation, keys: Sequence[int], clear: AbstractSet[int]) -> int:
    """Characters of the parts that have to be looked through for control tokens, about."""
    encode = msgspec.json.encode
    size = 0 if keys[0] in clear or not conversation.tools else len(encode(conversation.tools))
    for key, message in zip(keys[1:], conversation.messages, strict=True):
        if key not in clear:
            size += len(message.text) + len(message.reasoning)
            size += len(encode(message.calls)) if message.calls else 0
    return size


def _lead(template: ChatTemplate, encoder: TextEncoder) -> int:
    """How many ids the template puts at the end to make the assistant speak."""
    sample = [Message("user", "a")]
    try:
        ids, plain = (
            encoder.encode(template.render(sample, (), speaks), release=False).ids
            for speaks in (True, False)
        )
    except TextError:
        return 0
    return len(ids) - common_prefix(ids, plain)


def _speech(template: ChatTemplate, form: ReplyForm, encoder: TextEncoder) -> Speech:
    """How the model writes. A model whose tokenizer has no marks of its own for thoughts is not
    led into them, as it might not find its way out."""
    tokens = encoder.control
    try:
        prompt = template.render([Message("user", "a")], ())
    except TextError:
        prompt = ""
    opened = form.opened(prompt)
    thinks = form.marks[1] in template.source and (opened or form.marks[0] in tokens)
    done = prompt.rstrip().endswith(form.marks[1])
    marks = form.marks if thinks and not done else None
    return Speech(form.name, marks, opened, tokens)


def _joined(known: Known | None, made: Rendered, start: int, index: int, rest: Encoded) -> Known:
    ids, cuts = rest.ids, rest.cuts
    if known is not None and index:
        ids = np.concatenate((known.ids[:index], ids))
        kept = known.cuts[known.cuts[:, 2] < index]
        cuts = np.concatenate((kept, cuts + np.array([start, start, index], np.int32)))
    ids.setflags(write=False)
    return Known(made.text, ids, cuts if len(cuts) else NO_CUTS, made.marked)


def _stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """End-of-text ids of the generation config, else of the config."""
    path = folder / "generation_config.json"
    generation = json.loads(path.read_bytes()) if path.is_file() else {}
    found = generation.get("eos_token_id", config.get("eos_token_id"))
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)
