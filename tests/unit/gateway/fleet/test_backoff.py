from __future__ import annotations

from alipes.gateway.fleet.backoff import SECOND, Backoff, BackoffSettings

SETTINGS = BackoffSettings(first=0.5, longest=3.0, healthy=60.0)


def test_short_runs_double_the_delay_up_to_the_longest() -> None:
    backoff = Backoff(SETTINGS)
    delays = [backoff.ended(0, 59 * SECOND) / SECOND for _ in range(5)]
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_healthy_run_starts_over() -> None:
    backoff = Backoff(SETTINGS)
    for _ in range(4):
        backoff.ended(0, SECOND)
    assert backoff.ended(0, 60 * SECOND) == SECOND // 2
    assert backoff.ended(0, SECOND) == SECOND


def test_very_many_short_runs_stay_at_the_longest() -> None:
    backoff = Backoff(SETTINGS)
    assert [backoff.ended(0, 0) for _ in range(2000)][-1] == 3 * SECOND
