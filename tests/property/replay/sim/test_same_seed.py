"""The same seed gives the same bytes, in this process and in others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .small import NAMES, crowd, digest, written

HERE = Path(__file__).parent
PRINT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import small; print(small.digest(sys.argv[2]))"
)


@pytest.mark.parametrize("policy", ["residency", "cache-aware"])
def test_the_same_seed_gives_the_same_bytes(policy: str) -> None:
    expected = digest(policy)
    assert digest(policy) == expected
    ran = subprocess.run(
        [sys.executable, "-c", PRINT, str(HERE), policy],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == expected


def test_looking_at_a_run_does_not_change_it() -> None:
    first, second = (crowd(3, 12, NAMES[:3], 20.0).cluster() for _ in range(2))
    first.run()
    second.run(checked=True)
    assert written(first) == written(second)


def test_another_seed_gives_others() -> None:
    first, second = (crowd(seed, 6, NAMES[:2], 20.0).cluster() for seed in (1, 2))
    first.run()
    second.run()
    assert written(first) != written(second)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_crowd_far_beyond_capacity_is_served_to_the_end(seed: int) -> None:
    case = crowd(seed, 40, NAMES[:3], 500.0)
    cluster = case.cluster()
    cluster.run(checked=True)
    assert not [record.error for record in cluster.records if record.error]
    assert len(cluster.records) == sum(session.calls for session in case.sessions)
    assert cluster.counters()["preempted"] + cluster.counters()["resumed"] > 0
