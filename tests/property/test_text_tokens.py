"""Joined tokenizing equals tokenizing from scratch, whatever the texts and the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from alipes.gateway.text.cache import Known, joint
from alipes.gateway.text.tokens import TextEncoder

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RIGHT_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|" + QWEN
KINDS = ("smollm", "qwen-nfc", "cl100k", "o200k", "right-digits", "greedy-added", "prefix-space")

pieces = st.one_of(
    st.sampled_from(
        [
            "<|im_start|>",
            "<|im_end|>",
            "<|im_",
            "<|",
            "|>",
            "<gh",
            "<gh>",
            "<gh><x>",
            "<pad>",
            "<W>",
        ]
    ),
    st.sampled_from([" ", "  ", "\n", "\r\n", "\t", "\u00a0", "'", "'l", "l", "ve", "don't", "A"]),
    st.sampled_from(
        ["the", " word", "12", "345", "6", ".", "...", "é", "e\u0301", "漢", "😀", "/"]
    ),
    st.text(max_size=4).filter(lambda text: text.isascii() or text.isprintable()),
)
texts = st.lists(pieces, max_size=12).map("".join)


def variant(kind: str, source: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(source)
    rules = {"qwen-nfc": QWEN, "cl100k": CL100K, "o200k": O200K, "right-digits": RIGHT_DIGITS}
    if kind in rules:
        split = pre_tokenizers.Split(Regex(rules[kind]), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    if kind == "qwen-nfc":
        tokenizer.normalizer = normalizers.NFC()
    if kind == "prefix-space":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if kind == "greedy-added":
        tokenizer.add_special_tokens(
            [AddedToken("<gh>"), AddedToken("<gh><x>  <y>"), AddedToken("<pad>", lstrip=True)]
        )
        tokenizer.add_special_tokens([AddedToken("<q>"), AddedToken("go<q>zz")])
        tokenizer.add_tokens([AddedToken("<W>", single_word=True), AddedToken("word 1")])
        tokenizer.add_special_tokens([AddedToken("<|", rstrip=True)])
    return tokenizer


@pytest.fixture(scope="module")
def encoders(smollm2_folder: Path) -> dict[str, tuple[TextEncoder, Tokenizer]]:
    source = (smollm2_folder / "tokenizer.json").read_text()
    return {
        kind: (TextEncoder(variant(kind, source), far=0), variant(kind, source)) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(shared=texts, first=texts, second=texts)
def test_joined_ids_equal_ids_from_scratch(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]],
    kind: str,
    shared: str,
    first: str,
    second: str,
) -> None:
    encoder, reference = encoders[kind]
    known = Known(shared + first, *encoder.encode(shared + first, release=False))
    assert known.ids.tolist() == reference.encode(known.text, add_special_tokens=False).ids
    text = shared + second
    start, index = joint(known, text)
    rest = encoder.encode(text[start:], release=True)
    ids = np.concatenate((known.ids[:index], rest.ids))
    assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("before", "text"), [("go <gh><x>  Q", "go <gh><x>  <y> on"), ("go<q> Q", "go<q>zz on")]
)
def test_an_added_token_may_begin_before_a_cut_and_end_after_it(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]], before: str, text: str
) -> None:
    encoder, reference = encoders["greedy-added"]
    known = Known(before, *encoder.encode(before, release=False))
    start, index = joint(known, text)
    ids = [*known.ids[:index], *encoder.encode(text[start:], release=False).ids]
    assert ids == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["smollm", "qwen-nfc", "cl100k"])
def test_splits_are_reused_where_no_special_token_is(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]], kind: str
) -> None:
    text = "User: what is this thing?\nAssistant: " * 20
    encoder, _ = encoders[kind]
    known = Known(text, *encoder.encode(text, release=False))
    start, _ = joint(known, text + "a lamp")
    assert len(text) - start < 40


def test_a_prefix_space_forbids_joining_at_splits(
    encoders: dict[str, tuple[TextEncoder, Tokenizer]],
) -> None:
    encoder, reference = encoders["prefix-space"]
    assert json.loads(reference.to_str())["pre_tokenizer"]["add_prefix_space"] is True
    assert not len(encoder.encode("one two three four\nfive", release=False).cuts)
