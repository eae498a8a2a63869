"""The workloads that can be made, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from alipes.replay.traces.form import Trace
from alipes.replay.traces.synth import astropy, coding, osworld, putnam, swebench, talaria
from alipes.replay.traces.synth.numbers import Number


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. ``sessions`` 0 and no ``models`` are the workload's own;
    ``recorded`` is the trace that sessions are drawn from."""

    seed: int = 1
    sessions: int = 0
    models: tuple[str, ...] = ()
    recorded: Trace | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """``numbers`` are those that it rests on, by what they say."""

    summary: str
    make: Callable[[Wish], Trace]
    numbers: Mapping[str, Number]
    fixed_sessions: bool = False
    from_recorded: bool = False


def synthesise(name: str, wish: Wish) -> Trace:
    """Raises ValueError for an unknown workload and a wish that it cannot meet."""
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}; use one of {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    if wish.seed < 0:
        raise ValueError(f"seed {wish.seed} is below 0")
    if workload.fixed_sessions and wish.sessions:
        raise ValueError(f"{name} is the published trace; leave the number of sessions out")
    if workload.from_recorded and wish.recorded is None:
        raise ValueError(f"{name} is drawn from recorded sessions; name their file, --recorded")
    if not workload.from_recorded and wish.recorded is not None:
        raise ValueError(f"{name} is not drawn from recorded sessions; leave out --recorded")
    return workload.make(wish)


def _swebench(wish: Wish) -> Trace:
    return swebench.swebench(wish.seed, wish.sessions or swebench.DEFAULT, wish.models)


def _astropy_30(wish: Wish) -> Trace:
    return astropy.astropy_30(wish.seed, wish.models or astropy.LARGE_MODELS)


def _astropy_120(wish: Wish) -> Trace:
    return astropy.astropy_120(wish.seed, wish.models or astropy.SMALL_MODELS)


def _putnam(wish: Wish) -> Trace:
    return putnam.putnam_like(wish.seed, wish.sessions or putnam.DEFAULT, wish.models)


def _osworld(wish: Wish) -> Trace:
    return osworld.osworld_like(wish.seed, wish.sessions or osworld.DEFAULT, wish.models)


def _coding(wish: Wish) -> Trace:
    return coding.coding(wish.recorded or Trace("", ()), wish.seed, wish.sessions, wish.models)


_ASTROPY: Final = {**talaria.NUMBERS, **astropy.NUMBERS}
WORKLOADS: Final[Mapping[str, Workload]] = {
    swebench.NAME: Workload("Talaria's SWE-Bench sessions", _swebench, talaria.NUMBERS),
    astropy.LONG: Workload("Talaria's 960-call replay", _astropy_30, _ASTROPY, True),
    astropy.SHORT: Workload("Talaria's 120-call replay", _astropy_120, _ASTROPY, True),
    putnam.NAME: Workload("decode-heavy proving", _putnam, putnam.NUMBERS),
    osworld.NAME: Workload("prefill-heavy computer use", _osworld, osworld.NUMBERS),
    coding.NAME: Workload(
        "real sessions, drawn again", _coding, coding.NUMBERS, from_recorded=True
    ),
}
