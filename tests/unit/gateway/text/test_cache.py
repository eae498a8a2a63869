from __future__ import annotations

import numpy as np

from alipes.gateway.conversation.message import Message, Tool
from alipes.gateway.text.cache import Known, PromptCache, common_length, joint, message_keys
from alipes.gateway.text.tokens import NO_CUTS


def known(text: str, size: int = 1) -> Known:
    return Known(text, np.zeros(size, np.int32), NO_CUTS)


def test_keys_depend_on_tenant_tools_and_every_message_before() -> None:
    messages = [Message("user", c) for c in "ab"]
    keys = message_keys("t", (), messages)
    assert len(set(keys)) == 3
    assert message_keys("t", (), messages[:1]) == keys[:2]
    assert not set(message_keys("u", (), messages)) & set(keys)
    assert not set(message_keys("t", (Tool("f", None, {}),), messages)) & set(keys)
    assert not set(message_keys("t", (), messages[::-1])[1:]) & set(keys)


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
    cache.store([0, 1], first)
    cache.store([0, 1, 2], second)
    assert len(cache) == 1
    cache.store([0, 1, 3], fork)
    assert len(cache) == 2
    assert cache.find([0, 1, 2, 4]) == (second, 3)
    assert cache.find([0, 1, 5]) == (fork, 2)
    assert cache.find([9]) == (None, 0)


def test_the_least_recently_used_goes_and_the_count_stays_true() -> None:
    cache = PromptCache(10_000)
    for name in "abc":
        cache.store([ord(name)], known(name * 10, 700))
    assert len(cache) == 3
    cache.find([ord("a")])
    cache.store([ord("d")], known("d", 700))
    assert cache.find([ord("b")]) == (None, 0)
    assert cache.find([ord("a")])[1] == 1
    assert cache.cost <= 10_000
    cache.store([b"e"], known("e", 5000))
    assert cache.find([ord("e")]) == (None, 0)
    for i in range(200):
        cache.store([b"root", str(i).encode()], known(str(i), i))
        assert 0 < cache.cost <= 10_000
