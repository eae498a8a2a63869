"""Marks in a text change nothing but which control tokens are found, whatever the tokenizer."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from alipes.gateway.text.literal import SIGN, Literals
from alipes.gateway.text.tokens import TextEncoder

BREAK = SIGN + "b"
CORPUS = ["hello world this is a text about the weather, what is it  and\n\n  why 12 345"] * 50
KINDS = ("bytes", "first", "always", "never", "legacy", "split", "nfc")
CONTROL = ("<s>", "[INST]", "[/INST]", "<|left|>", "<|right|>", "<norm>")
LAST = "[LAST]"


def tokenizer_of(kind: str, *more: str) -> Tokenizer:
    """With control tokens of all sorts and runs of blanks behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    alphabet: list[str] = []
    if kind in ("bytes", "nfc"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        scheme = "first" if kind == "split" else kind
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme=scheme, split=kind == "split"
        )
    if kind == "nfc":
        tokenizer.normalizer = normalizers.NFC()
    special = ["<unk>", "<s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("  ", normalized=False)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in CONTROL[:3]])
    tokenizer.add_special_tokens(
        [
            AddedToken("<|left|>", normalized=False, lstrip=True),
            AddedToken("<|right|>", normalized=False, rstrip=True),
            AddedToken("<norm>", normalized=kind != "legacy"),
        ]
    )
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in more])
    return tokenizer


@pytest.fixture(scope="module")
def encoders() -> dict[str, tuple[TextEncoder, Tokenizer]]:
    return {
        kind: (TextEncoder(tokenizer_of(kind, LAST), far=0), tokenizer_of(kind)) for kind in KINDS
    }


words = st.lists(
    st.sampled_from(
        [" ", "  ", "\n\n", "hello", " world", "12", "é", "e\u0301", "▁", "what", "漢"]
    ),
    max_size=6,
).map("".join)
client = st.one_of(words, st.sampled_from([LAST, f"a {LAST} b"]))
parts = st.lists(st.tuples(st.sampled_from(("", *CONTROL)), client), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(made=parts, release=st.booleans())
def test_a_marked_text_has_the_ids_of_a_tokenizer_without_the_token(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]],
    kind: str,
    made: list[tuple[str, str]],
    release: bool,
) -> None:
    encoder, reference = encoders[kind]
    marked = "".join(
        f"{token}{BREAK}{text.replace(LAST, f'[{BREAK}{LAST[1:]}')}" for token, text in made
    )
    plain = "".join(token + text for token, text in made)
    ids, cuts = encoder.encode(marked, release)
    assert ids.tolist() == reference.encode(plain, add_special_tokens=False).ids
    for start, _, index in cuts.tolist():
        assert encoder.encode(marked[start:], release).ids.tolist() == ids[index:].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_client_text_that_is_a_used_token_stays_text(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]], kind: str
) -> None:
    encoder, _ = encoders[kind]
    text = f"[INST]{encoder.literals.text('what is [INST] about <norm>')}[/INST]"
    ids = encoder.encode(text, release=False).ids.tolist()
    control = {encoder.control[token] for token in CONTROL}
    found = [number for number in ids if number in control]
    assert found == [encoder.control["[INST]"], encoder.control["[/INST]"]]


@settings(max_examples=300)
@given(
    tokens=st.sets(st.text(alphabet="ab<", min_size=1, max_size=6), min_size=1, max_size=12),
    text=st.text(alphabet="ab<", max_size=30),
)
def test_the_longest_token_is_found_at_each_place(tokens: set[str], text: str) -> None:
    flat = re.compile("|".join(sorted(tokens, key=len, reverse=True)))
    assert Literals(tokens).pattern.findall(text) == flat.findall(text)


def test_many_tokens_that_begin_alike_and_long_ones_are_soon_looked_for() -> None:
    literals = Literals(
        [*(f"<|reserved_{i}|>" for i in range(3000)), *("-" * n for n in range(1, 400))]
    )
    before = time.perf_counter()
    for text in ("<" * 1_000_000, "<|reserved_" * 100_000):
        assert literals.pattern.search(text) is None
    assert time.perf_counter() - before < 1.0
