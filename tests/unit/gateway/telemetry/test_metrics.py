from __future__ import annotations

from alipes.gateway.telemetry.metrics import OTHER, BoundedLabel, Metrics


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


def test_instances_and_models_that_are_not_configured_share_a_label() -> None:
    metrics = Metrics(["m"], ["one"])
    for number in range(50):
        metrics.placed(f"rogue-{number}", "only")
        metrics.instance_up(f"rogue-{number}", True)
    text = metrics.render().decode()
    assert "rogue" not in text
    assert 'alipes_placements_total{instance="other",reason="only"} 50.0' in text
