"""Which models can still come to be served when instances fail for good."""

from __future__ import annotations

from collections.abc import Mapping


class Prospects:
    """``serving`` has the instances of every model. One that is started elsewhere is never known to
    have failed."""

    def __init__(self, serving: Mapping[str, frozenset[str]]) -> None:
        self._left = {model: set(names) for model, names in serving.items()}

    @property
    def any(self) -> bool:
        """Some model may have an instance, now or later."""
        return any(self._left.values())

    def failed(self, instance: str) -> tuple[str, ...]:
        """``instance`` is not started again; the models whose last one it was."""
        lost = []
        for model, names in self._left.items():
            if instance in names:
                names.remove(instance)
                if not names:
                    lost.append(model)
        return tuple(lost)
