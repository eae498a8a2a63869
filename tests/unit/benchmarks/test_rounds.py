from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from alipes.replay.records import CallRecord


@pytest.fixture
def rounds(script: Callable[[str], ModuleType]) -> Any:
    return script("rounds")


def record(name: str, output: str) -> CallRecord:
    instants = {"gap": 0.0, "intended": 0.0, "sent": 0.0, "finished": 1.0}
    return CallRecord(
        session="s",
        request_id=name,
        model="m",
        index=0,
        expected_tokens=5,
        prompt_tokens=100,
        cached_tokens=60,
        completion_tokens=5,
        output=output,
        **instants,
    )


def outcome(rounds: Any, outputs: list[str], **changes: int) -> Any:
    counters = {
        "finished": 2,
        "live_calls": 0,
        "decode_tokens": 10,
        "preempted": 0,
        "cached_tokens": 120,
        "prefill_tokens": 80,
    }
    records = tuple(record(f"s.{i}", output) for i, output in enumerate(outputs))
    return rounds.Outcome(records, counters | changes, {"s": 1.0}, 1.0)


def test_texts_that_differ_between_runs_are_told(rounds: Any) -> None:
    same, other = outcome(rounds, ["x", "y"]), outcome(rounds, ["x", "z"])
    assert rounds.differing([[same, same], [same]]) == []
    assert rounds.differing([[same], [other]]) == ["s.1: 2 different texts"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"decode_tokens": 11}, ["all: decode_tokens 11, clients saw 10"]),
        ({"prefill_tokens": 90}, ["all: prefill_tokens 90, clients saw 80"]),
        ({"prefill_tokens": 90, "preempted": 1}, []),
        ({"live_calls": 1}, ["all: live_calls 1, clients saw 0"]),
    ],
)
def test_counters_must_be_what_clients_saw(
    rounds: Any, changes: dict[str, int], found: list[str]
) -> None:
    configuration = rounds.Configuration("all", True, True, 0.1)
    run = outcome(rounds, ["x", "y"], **changes)
    assert rounds.miscounted({configuration: [run]}) == found
