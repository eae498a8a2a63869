from __future__ import annotations

from alipes.gateway.telemetry.labels import OTHER, BoundedLabel


def test_a_label_takes_known_values_and_the_first_few_others() -> None:
    label = BoundedLabel(["a"], learn=2)
    assert [label(value) for value in ("a", "x", "y", "x", "z", "a")] == [
        "a",
        "x",
        "y",
        "x",
        OTHER,
        "a",
    ]
    assert BoundedLabel(["a"])("b") == OTHER
