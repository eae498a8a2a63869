from __future__ import annotations

import numpy as np

from alipes.gateway.text.cache import Known, PromptCache, common_length, joint, message_keys
from alipes.gateway.text.tokens import NO_CUTS


def known(text: str, size: int = 1) -> Known:
    return Known(text, np.zeros(size, np.int32), NO_CUTS)


def test_keys_depend_on_tenant_tools_and_every_message_before() -> None:
    messages = [{"role": "user", "content": c} for c in "ab"]
    keys = message_keys("t", None, messages)
    assert len(set(keys)) == 3
    assert message_keys("t", None, messages[:1]) == keys[:2]
    assert not set(message_keys("u", None, messages)) & set(keys)
    assert not set(message_keys("t", [{"type": "function"}], messages)) & set(keys)
    assert not set(message_keys("t", None, messages[::-1])[1:]) & set(keys)


def test_common_length_by_halves() -> None:
    assert common_length("", "a") == 0
    for n in (0, 1, 5, 63, 64, 1000):
        assert common_length("x" * n + "a" + "z" * 9, "x" * n + "b" + "z" * 9) == n
        assert common_length("x" * n, "x" * (n + 3)) == n


def test_joint_takes_the_last_cut_whose_need_is_met() -> None:
    cuts = np.array([[0, 4, 0], [5, 9, 2], [10, 14, 6]], np.int32)
    entry = Known("abcdefghijklmnop", np.arange(9, dtype=np.int32), cuts)
    assert joint(entry, "abcdefghijklmXXX") == (5, 2)
    assert joint(entry, "abcdefghijklmnX") == (10, 6)
    assert joint(entry, "abX") == (0, 0)
    assert joint(entry, entry.text) == (16, 9)


def test_a_growing_conversation_is_one_entry_and_a_fork_one_more() -> None:
    cache = PromptCache(1 << 20)
    first, second, fork = known("1"), known("12"), known("13")
    cache.store([b"r", b"1"], first)
    cache.store([b"r", b"1", b"12"], second)
    assert len(cache) == 1
    cache.store([b"r", b"1", b"13"], fork)
    assert len(cache) == 2
    assert cache.find([b"r", b"1", b"12", b"124"]) is second
    assert cache.find([b"r", b"1", b"15"]) is fork
    assert cache.find([b"x"]) is None


def test_the_least_recently_used_goes_and_the_count_stays_true() -> None:
    cache = PromptCache(10_000)
    for name in "abc":
        cache.store([name.encode()], known(name * 10, 700))
    assert len(cache) == 3
    cache.find([b"a"])
    cache.store([b"d"], known("d", 700))
    assert cache.find([b"b"]) is None
    assert cache.find([b"a"]) is not None
    assert cache.cost <= 10_000
    cache.store([b"e"], known("e", 5000))
    assert cache.find([b"e"]) is None
    for i in range(200):
        cache.store([b"root", str(i).encode()], known(str(i), i))
        assert 0 < cache.cost <= 10_000
