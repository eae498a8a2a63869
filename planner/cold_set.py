"""Can a set of models share one instance in rounds at all?

Talaria Eq. 4: with t the decode step of each model, a round keeps the mean time between tokens
under T_TPOT only if every t, and the sum of all, is below T_TPOT; prefill and switches come on
top of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alipes.instance.memory.plan import ModelShape


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode iteration of one call in seconds, and where the number is from."""

    model: str
    seconds: float
    basis: str


def step_bytes(shape: ModelShape) -> int:
    """Weights that one decode iteration of one call reads: all but the rows of an embedding
    that no output layer shares, and the experts that its token does not visit."""
    total = 0.0
    for tensor in shape.layout.tensors:
        if tensor.name == "embed" and not shape.config.tied:
            continue
        part = 1.0
        if shape.config.experts is not None and len(tensor.shape) == 3:
            part = shape.config.experts.top_k / shape.config.experts.count
        total += tensor.nbytes * part
    return int(total)


def decode_step(
    model: str, shape: ModelShape, override: float | None, bandwidth: float
) -> DecodeStep:
    """The file's number, else weights over memory bandwidth (bytes a second): a lower bound."""
    if override is not None:
        return DecodeStep(model, override, "decode_step in the file")
    seconds = step_bytes(shape) / bandwidth
    return DecodeStep(model, seconds, f"{step_bytes(shape):,} bytes at {bandwidth / 1e9:.1f} GB/s")


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
