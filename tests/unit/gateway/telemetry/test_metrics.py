from __future__ import annotations

from alipes.gateway.telemetry.metrics import Metrics


def test_instances_and_models_that_are_not_configured_share_a_label() -> None:
    metrics = Metrics(["m"], ["one"])
    for number in range(50):
        metrics.placed(f"rogue-{number}", "only")
        metrics.instance_up(f"rogue-{number}", True)
    text = metrics.render().decode()
    assert "rogue" not in text
    assert 'alipes_placements_total{instance="other",reason="only"} 50.0' in text
