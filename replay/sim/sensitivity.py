"""A profile with one number at a time at the ends of its range."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import msgspec

from alipes.replay.sim.hardware import Hardware, quantities

T = TypeVar("T")


def variants(
    hardware: Hardware, models: Collection[str] | None = None
) -> Iterator[tuple[str, Hardware]]:
    """(label, profile) for the low and the high end of every number that has one, in the order of
    the file; of the models only ``models``, where given."""
    for path, quantity in quantities(hardware):
        part, _, rest = path.partition(".")
        if part == "models" and models is not None and rest.rpartition(".")[0] not in models:
            continue
        for end, value in (("low", quantity.low), ("high", quantity.high)):
            if value:
                changed = msgspec.structs.replace(quantity, value=value)
                yield f"{path} {end} ({value:g})", _replaced(hardware, path, changed)


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
