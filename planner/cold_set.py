"""Can a set of models share one instance in rounds at all?

Talaria Eq. 4: with t the decode step of each model, a round keeps the mean time between tokens
under T_TPOT only if every t, and the sum of all, is below T_TPOT; prefill and switches come on
top of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode iteration of one call in seconds, and where the number is from."""

    model: str
    seconds: float
    basis: str


def decode_step(
    model: str, step_bytes: int, override: float | None, bandwidth: float
) -> DecodeStep:
    """The file's number, else the bytes that a step reads over memory bandwidth (bytes a
    second): a lower bound."""
    if override is not None:
        return DecodeStep(model, override, "decode_step in the file")
    basis = f"{step_bytes:,} bytes at {bandwidth / 1e9:.1f} GB/s"
    return DecodeStep(model, step_bytes / bandwidth, basis)


def infeasible(instance: str, steps: Mapping[str, DecodeStep], tpot: float) -> str:
    """Why the models cannot meet ``tpot`` seconds together there; empty when they can."""
    total = sum(step.seconds for step in steps.values())
    if total < tpot:
        return ""
    each = ", ".join(f"{step.model} {step.seconds:.3f} s ({step.basis})" for step in steps.values())
    return (
        f"instances.{instance}: one decode step of each model takes {total:.3f} s in all, which "
        f"leaves no round under targets.tpot of {tpot:g} s: {each}; move a model to another "
        "instance or raise targets.tpot"
    )
