"""A profile with one number at a time at the ends of its range."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from alipes.replay.sim.hardware import Hardware, quantities

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """A number of a profile by its dotted name: what the profile gives, and the end (low or high)
    of its range that is tried."""

    number: str
    end: str
    given: float
    tried: float

    @property
    def label(self) -> str:
        return f"{self.number} {self.end} ({self.tried:g})"


def variants(
    hardware: Hardware, models: Collection[str] | None = None
) -> Iterator[tuple[Variant, Hardware]]:
    """For the low and the high end of every number that has one what is varied and the profile
    with it, in the order of the file; of the models only ``models``, where given."""
    for path, quantity in quantities(hardware):
        part, _, rest = path.partition(".")
        if part == "models" and models is not None and rest.rpartition(".")[0] not in models:
            continue
        for end, value in (("low", quantity.low), ("high", quantity.high)):
            if value and value != quantity.value:
                changed = msgspec.structs.replace(quantity, value=value)
                yield Variant(path, end, quantity.value, value), _replaced(hardware, path, changed)


def _replaced(part: T, path: str, value: object) -> T:
    """``part`` with ``value`` at the dotted ``path``."""
    if not path:
        return value  # type: ignore[return-value]
    inner: Any = part
    if isinstance(inner, dict):
        # Names of models may hold dots; names of fields do not.
        name = next(key for key in inner if path == key or path.startswith(f"{key}."))
        changed: Any = {**inner, name: _replaced(inner[name], path[len(name) + 1 :], value)}
    else:
        name, _, rest = path.partition(".")
        old = getattr(inner, name)
        changed = msgspec.structs.replace(inner, **{name: _replaced(old, rest, value)})
    return changed  # type: ignore[no-any-return]
