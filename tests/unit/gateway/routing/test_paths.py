"""Block keys of prompts: those of the contract, computed once."""

from __future__ import annotations

import numpy as np
import pytest

from alipes.gateway.routing import paths
from alipes.gateway.routing.paths import TokenPath, common_prefix
from alipes.instance.contract import BLOCK_TOKENS, TokenIds, chain_key, chain_keys, chain_root


def prompt(size: int, seed: int = 1) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def slow_keys(tokens: TokenIds, tenant: str, kv_format: str) -> list[bytes]:
    keys, key = [], chain_root(kv_format, tenant.encode())
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = chain_key(key, tokens[start : start + BLOCK_TOKENS])
        keys.append(key)
    return keys


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_keys_are_those_of_the_chain(size: int) -> None:
    tokens = prompt(size)
    path = TokenPath(tokens, "tenant")
    for kv_format in ("f", "g", "f"):
        assert path.keys(kv_format) == slow_keys(tokens, "tenant", kv_format)
    assert TokenPath(tokens, "other").keys("f") == slow_keys(tokens, "other", "f")


@pytest.mark.parametrize("shared", [0, 63, 64, 100, 640, 1000])
def test_a_path_that_goes_on_takes_keys_over(shared: int) -> None:
    before = TokenPath(prompt(1000), "t")
    before.keys("f")
    tokens = np.concatenate((before.tokens[:shared], prompt(300, 2)))
    after = TokenPath(tokens, "t", before)
    for kv_format in ("f", "g"):
        assert after.keys(kv_format) == slow_keys(tokens, "t", kv_format)
    assert before.keys("f") == slow_keys(before.tokens, "t", "f")


def test_blocks_may_have_another_size() -> None:
    tokens = prompt(1000)
    path = TokenPath(tokens, "t", block_tokens=100)
    assert path.keys("f") == chain_keys(chain_root("f", b"t"), tokens, 100)
    longer = path.followed_by(prompt(250, 2))
    assert longer.keys("f") == chain_keys(chain_root("f", b"t"), longer.tokens, 100)
    assert longer.keys("f")[:10] == path.keys("f")


def test_only_new_blocks_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counting(parent: bytes, tokens: TokenIds, block_tokens: int) -> list[bytes]:
        keys = chain_keys(parent, tokens, block_tokens)
        hashed.extend(keys)
        return keys

    path = TokenPath(prompt(640), "t")
    path.keys("f")
    longer = path.followed_by(prompt(64, 2))
    monkeypatch.setattr(paths, "chain_keys", counting)
    longer.keys("f")
    longer.keys("f")
    path.keys("f")
    assert len(hashed) == 1


def test_its_cost_counts_tokens_and_keys() -> None:
    path = TokenPath(prompt(640), "t")
    bare = path.cost
    assert bare == 640 * 4
    path.keys("f")
    assert path.cost > bare


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ("", "", 0),
        ("", "a", 0),
        ("a", "b", 0),
        ("ab", "ab", 2),
        ("abc", "abd", 2),
        ("ab", "abc", 2),
    ],
)
def test_common_prefix(a: str, b: str, length: int) -> None:
    def ids(text: str) -> TokenIds:
        return np.array([ord(letter) for letter in text], np.int32)

    assert common_prefix(ids(a), ids(b)) == common_prefix(ids(b), ids(a)) == length
