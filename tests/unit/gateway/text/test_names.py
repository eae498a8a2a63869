from __future__ import annotations

from alipes.gateway.text.names import ModelNames


def test_names_that_stand_for_models() -> None:
    aliases = {"claude-*": "a", "claude-haiku-*": "b", "fast": "b", "gone": "c"}
    names = ModelNames(("a", "b"), aliases)
    asked = {
        "a": "a",
        "fast": "b",
        "claude-sonnet-5": "a",
        "claude-haiku-4-5-20251001": "b",
        "a[1m]": "a",
        "claude-sonnet-5[1M]": "a",
        "gone": None,
        "x": None,
        "[1m]": None,
    }
    assert {name: names.find(name) for name in asked} == asked
    assert names.shown == {"a": "a", "b": "b", "fast": "b"}
