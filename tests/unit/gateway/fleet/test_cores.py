from __future__ import annotations

import pytest

from alipes.gateway.fleet.cores import divide_cores


@pytest.mark.parametrize(
    ("total", "requests", "shares"),
    [
        (2, {"a": 0, "b": 0}, {"a": 1, "b": 1}),
        (8, {"a": 0, "b": 0, "c": 0}, {"a": 3, "b": 3, "c": 2}),
        (8, {"a": 2, "b": 0, "c": 0}, {"a": 2, "b": 3, "c": 3}),
        (1, {"a": 0, "b": 0}, {"a": 1, "b": 1}),
        (2, {"a": 4, "b": 0}, {"a": 4, "b": 1}),
        (16, {"a": 0}, {"a": 16}),
        (4, {}, {}),
    ],
)
def test_cores_are_divided(total: int, requests: dict[str, int], shares: dict[str, int]) -> None:
    assert divide_cores(total, requests) == shares
