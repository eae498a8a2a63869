"""Which blocks count for a prompt, and what events do to them."""

from __future__ import annotations

import pytest

from alipes.gateway.routing.directory import BlockDirectory, Locality
from alipes.instance.contract import BlocksRemoved, BlocksStored, Tier

K = tuple(bytes([n]) * 16 for n in range(6))


def stored(tier: Tier, *keys: bytes) -> BlocksStored:
    return BlocksStored("a", tier, b"", keys)


def known(directory: BlockDirectory, instance: str) -> int:
    count = sum(bool(directory.tiers(instance, key)) for key in K)
    assert directory.knows(instance) == (count > 0)
    return count


@pytest.fixture
def directory() -> BlockDirectory:
    """Blocks 0 and 1 on the device, 1 to 3 on the host, 5 on the device."""
    directory = BlockDirectory()
    directory.stored("x", stored(Tier.DEVICE, K[0], K[1], K[5]))
    directory.stored("x", stored(Tier.HOST, K[1], K[2], K[3]))
    return directory


def test_the_unbroken_beginning_counts_in_the_nearer_tier(directory: BlockDirectory) -> None:
    assert directory.locality("x", K, 600, 64) == Locality(128, 128, 600 - 256)
    assert directory.locality("y", K, 600, 64) == Locality(0, 0, 600)
    assert directory.locality("x", K[1:], 600, 64) == Locality(64, 128, 600 - 192)
    assert directory.locality("x", (K[4], K[0]), 600, 64).present == 0


@pytest.mark.parametrize(("tokens", "present"), [(0, 0), (1, 0), (64, 0), (65, 64), (129, 128)])
def test_a_prompts_last_token_is_computed(
    directory: BlockDirectory, tokens: int, present: int
) -> None:
    assert directory.locality("x", K, tokens, 64).present == present


def test_tiers_come_and_go_apart_and_repetition_changes_nothing(
    directory: BlockDirectory,
) -> None:
    directory.stored("x", stored(Tier.DEVICE, K[0], K[1]))
    assert directory.tiers("x", K[1]) == {Tier.DEVICE, Tier.HOST}
    assert known(directory, "x") == 5
    for _ in range(2):
        directory.removed("x", BlocksRemoved("a", Tier.DEVICE, K))
    assert directory.locality("x", K[1:], 600, 64) == Locality(0, 192, 600 - 192)
    assert known(directory, "x") == 3
    directory.removed("x", BlocksRemoved("a", Tier.HOST, K))
    assert known(directory, "x") == 0
    assert directory.tiers("x", K[1]) == frozenset()


def test_a_lost_instance_has_nothing(directory: BlockDirectory) -> None:
    directory.stored("y", stored(Tier.HOST, K[0]))
    directory.clear("x")
    directory.clear("x")
    assert (known(directory, "x"), known(directory, "y")) == (0, 1)
    directory.removed("x", BlocksRemoved("a", Tier.HOST, K))
    assert known(directory, "x") == 0


def test_what_was_found_holds_until_blocks_change(directory: BlockDirectory) -> None:
    assert directory.locality("x", K, 600, 64) == directory.locality("x", K, 600, 64)
    assert directory.locality("x", K, 129, 64) == Locality(128, 0, 1)
    directory.stored("x", stored(Tier.DEVICE, K[4]))
    assert directory.locality("x", K, 600, 64) == Locality(256, 128, 600 - 384)
    directory.removed("x", BlocksRemoved("a", Tier.DEVICE, K[:1]))
    assert directory.locality("x", K, 600, 64).present == 0
    for number in range(200):
        directory.locality("y", (K[0], bytes([number]) * 16), 600, 64)
    assert len(directory._found["y"]) <= 64
