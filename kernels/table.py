"""The one table of tensor operations: for each device the fastest form of every operation.

``reference`` fixes what an operation means (shapes, dtypes, which arguments it changes); every
other column must agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.util import find_spec
from typing import Final

import torch

from alipes.kernels import cpu, cpu_attention, delta, delta_reference, portable, reference
from alipes.kernels.routing import Routing
from alipes.kernels.shapes import KvHeads, Move, PageTable, Segment, Workspace

Tensor = torch.Tensor
Linear = Callable[[Tensor, Tensor, Workspace], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Sequence[Segment], Workspace], Tensor]
Delta = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
AttendLatent = Callable[[Tensor, Tensor, Tensor, Sequence[Segment], int, float, Workspace], Tensor]
AttendLatentStep = Callable[[Tensor, Tensor, PageTable, int, float], Tensor]
Route = Callable[[Tensor, Tensor, Tensor | None, Routing], tuple[Tensor, Tensor]]
CopyRows = Callable[[Tensor, Tensor, Tensor, Tensor], None]
ExpertsForm = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Workspace], Tensor]


@dataclass(frozen=True, slots=True)
class Kernels:
    """One column of the table."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rope: Callable[[Tensor, Tensor], None]
    linear: Linear
    silu_mul: Callable[[Tensor], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor], None]
    attend: Attend
    attend_latent: AttendLatent
    attend_step: Callable[[Tensor, Tensor, PageTable], Tensor]
    attend_latent_step: AttendLatentStep
    per_head: Linear
    route: Route
    experts: ExpertsForm
    delta_gates: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    delta_chunk: Delta
    delta_step: Delta
    conv_chunk: Callable[[Tensor, Tensor, Tensor], Tensor]
    conv_step: Callable[[Tensor, Tensor, Tensor], Tensor]
    l2_norm: Callable[[Tensor, float], Tensor]
    gated_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    copy_out: CopyRows
    copy_in: CopyRows
    checksums: Callable[[Tensor, Tensor], Tensor]
    move: Callable[[Tensor, Sequence[Move]], None]
    penalize: Callable[[Tensor, Tensor, int, float, float, float], None]
    restrict: Callable[[Tensor, int, float, float], Tensor]
    race: Callable[[Tensor, Tensor], int]


REFERENCE: Final = Kernels(
    rms_norm=reference.rms_norm,
    rope=reference.rope,
    linear=reference.linear,
    silu_mul=reference.silu_mul,
    write_kv=reference.write_kv,
    attend=reference.attend,
    attend_latent=reference.attend_latent,
    attend_step=reference.attend_step,
    attend_latent_step=reference.attend_latent_step,
    per_head=reference.per_head,
    route=reference.route,
    experts=reference.experts,
    delta_gates=delta_reference.delta_gates,
    delta_chunk=delta_reference.delta_chunk,
    delta_step=delta_reference.delta_step,
    conv_chunk=delta_reference.conv_chunk,
    conv_step=delta_reference.conv_step,
    l2_norm=delta_reference.l2_norm,
    gated_norm=delta_reference.gated_norm,
    copy_out=reference.copy_out,
    copy_in=reference.copy_in,
    checksums=reference.checksums,
    move=reference.move,
    penalize=reference.penalize,
    restrict=reference.restrict,
    race=reference.race,
)

PORTABLE: Final = replace(
    REFERENCE,
    rms_norm=portable.rms_norm,
    rope=portable.rope,
    linear=portable.linear,
    silu_mul=portable.silu_mul,
    write_kv=portable.write_kv,
    per_head=portable.per_head,
    route=portable.route,
    delta_chunk=delta.delta_chunk,
    delta_step=delta.delta_step,
    conv_chunk=delta.conv_chunk,
    conv_step=delta.conv_step,
    gated_norm=delta.gated_norm,
    copy_out=portable.copy_out,
    copy_in=portable.copy_in,
    move=portable.move,
    penalize=portable.penalize,
    restrict=portable.restrict,
)

CPU: Final = replace(
    PORTABLE,
    linear=cpu.linear,
    attend=cpu_attention.attend,
    attend_latent=cpu_attention.attend_latent,
    per_head=cpu.per_head,
    experts=cpu.experts,
    copy_out=cpu.copy_out,
    copy_in=cpu.copy_in,
)
CPU_NARROW: Final = replace(CPU, linear=cpu.narrow_linear, experts=cpu.narrow_experts)

# Above this many rows widening a float16 matrix is faster than multiplying in float16: each row
# costs the latter 7-14 ms on SmolLM2 (135M), widening 25-45 ms at once (two cores, AVX2/AVX-512).
NARROW_ROWS: Final = 4


def kernels_for(
    device: torch.device, narrow_rows: int | None, held: frozenset[KvHeads] = frozenset()
) -> Kernels:
    """The column for a step: ``narrow_rows`` is its number of rows where float16 products will
    do, None where they will not; ``held`` are the keys and values of the model's layers, if it has
    any and attends to them in this step."""
    if device.type == "cpu":
        return CPU_NARROW if narrow_rows is not None and narrow_rows <= NARROW_ROWS else CPU
    if device.type != "cuda":
        return PORTABLE
    return _cuda_over(device, held) if held else _cuda()


def variants(*columns: Kernels) -> dict[str, str]:
    """Operation by operation the module, of this folder, that its form is in; all of them, with a
    plus between, where columns differ."""

    def module(column: Kernels, name: str) -> str:
        found: str = getattr(column, name).__module__.rpartition(".")[2]
        return found

    names = [field.name for field in fields(Kernels)]
    return {n: "+".join(dict.fromkeys(module(column, n) for column in columns)) for n in names}


@cache
def _cuda() -> Kernels:
    if find_spec("triton") is None:
        return PORTABLE
    # Nobody else needs Triton: it may be missing, and takes a while to import.
    from alipes.kernels.triton_column import triton_column

    return triton_column()


@cache
def _cuda_over(device: torch.device, held: frozenset[KvHeads]) -> Kernels:
    if find_spec("flashinfer") is None:
        return _cuda()
    # As with Triton.
    from alipes.kernels.flashinfer_attention import attend_over

    attend = attend_over(device, held)
    return _cuda() if attend is None else replace(_cuda(), attend=attend)
