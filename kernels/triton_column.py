"""The column of the table for GPUs with Triton. Importing this imports it."""

from __future__ import annotations

from dataclasses import replace

from alipes.kernels import (
    triton_attention,
    triton_delta,
    triton_experts,
    triton_rows,
    triton_sampling,
)
from alipes.kernels.table import PORTABLE, Kernels
from alipes.kernels.triton_attention import PagedAttention


def triton_column() -> Kernels:
    attention = PagedAttention()
    return replace(
        PORTABLE,
        attend=attention.attend,
        attend_latent=attention.attend_latent,
        attend_step=triton_attention.attend_step,
        attend_latent_step=triton_attention.attend_latent_step,
        experts=triton_experts.experts,
        delta_chunk=triton_delta.delta_chunk,
        delta_step=triton_delta.delta_step,
        copy_out=triton_rows.copy_out,
        copy_in=triton_rows.copy_in,
        move=triton_rows.move,
        penalize=triton_sampling.penalize,
    )
