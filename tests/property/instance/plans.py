"""Instances' memory settings and footprints of models to plan for, for Hypothesis."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Targets
from alipes.instance.memory.plan import Footprint
from alipes.instance.memory.specs import (
    DTYPE_BYTES,
    Paged,
    PagedKV,
    PagedLatent,
    Recurrent,
    StateSpec,
)

ENOUGH: Final = 300_000
DTYPES = st.sampled_from(sorted(DTYPE_BYTES))
PAGED: st.SearchStrategy[Paged] = st.one_of(
    st.builds(PagedKV, st.integers(1, 3), st.sampled_from((2, 8)), DTYPES),
    st.builds(PagedLatent, st.sampled_from((6, 20)), DTYPES),
)
# All of a layer in whole words of four bytes, as families have it: no state is out of line.
SHAPES = st.lists(st.tuples(st.integers(1, 5), st.sampled_from((2, 4, 6))), min_size=1, max_size=2)
RECURRENT: st.SearchStrategy[StateSpec] = st.builds(Recurrent, SHAPES.map(tuple), DTYPES)


@st.composite
def states(draw: st.DrawFn) -> tuple[StateSpec, ...]:
    """One paged layer at least, which every family has."""
    layers: list[StateSpec] = draw(st.lists(PAGED | RECURRENT, max_size=5))
    layers.insert(draw(st.integers(0, len(layers))), draw(PAGED))
    return tuple(layers)


def footprints() -> st.SearchStrategy[Footprint]:
    return st.builds(
        Footprint,
        weight_bytes=st.integers(1, 60_000),
        step_bytes=st.just(0),
        runtime_bytes=st.integers(0, 20_000),
        context=st.integers(1, 200),
        states=states(),
    )


@st.composite
def instances(draw: st.DrawFn, least: int = 0) -> tuple[InstanceSettings, dict[str, Footprint]]:
    """``ENOUGH`` device bytes at least hold every model; with less some do not fit."""
    models = {f"m{i}": draw(footprints()) for i in range(draw(st.integers(1, 3)))}
    settings = InstanceSettings(
        name="i",
        pool=Pool.COLD,
        models=tuple(ModelSettings(name, "") for name in models),
        targets=Targets(),
        endpoint="",
        device_bytes=draw(st.integers(least, 2 * ENOUGH)),
        host_bytes=draw(st.integers(0, 50_000)),
        block_tokens=draw(st.sampled_from((1, 4, 16))),
        prefill_chunk=draw(st.integers(1, 64)),
        max_running=draw(st.integers(1, 4)),
    )
    return settings, models
