"""The model that a name stands for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

# Claude Code marks a name where it asks for a context of a million tokens.
_CONTEXT: Final = re.compile(r"\[[0-9]+[kKmM]\]$")


class ModelNames:
    """``models`` are served. An alias that ends in ``*`` stands for every name that begins so; the
    longest that fits counts, a whole name before all."""

    def __init__(self, models: Collection[str], aliases: Mapping[str, str]) -> None:
        self._models = models
        self._whole = {alias: model for alias, model in aliases.items() if alias[-1:] != "*"}
        begun = [(alias[:-1], model) for alias, model in aliases.items() if alias[-1:] == "*"]
        self._begun = sorted(begun, key=lambda pair: -len(pair[0]))

    @property
    def shown(self) -> dict[str, str]:
        """The model of every name that can be listed."""
        served = {model: model for model in self._models}
        return served | {a: m for a, m in self._whole.items() if m in self._models}

    def find(self, name: str) -> str | None:
        """None for a name of no model that is served."""
        for asked in (name, _CONTEXT.sub("", name)):
            model = self._one(asked)
            if model in self._models:
                return model
        return None

    def _one(self, name: str) -> str | None:
        if name in self._models:
            return name
        if name in self._whole:
            return self._whole[name]
        return next((model for begin, model in self._begun if name.startswith(begin)), None)
