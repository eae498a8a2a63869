"""docs/gateway.md names every metric."""

from __future__ import annotations

from pathlib import Path

from alipes.gateway.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[3] / "docs" / "gateway.md"
PREFIX = "alipes_instance_"


def test_every_metric_is_in_the_tables() -> None:
    text = PAGE.read_text().partition("## Metrics")[2]
    for metric in Metrics((), ()).registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        short = name.removeprefix(PREFIX)
        assert f"`{name}`" in text or f"`{short}`" in text, name
