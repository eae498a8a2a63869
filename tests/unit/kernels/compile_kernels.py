"""A program: compiles every Triton kernel, as it is launched for models of their usual sizes, for a
GPU that need not be there. Prints the name of each and the bytes of shared memory it takes."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from alipes.kernels import triton_delta, triton_experts, triton_rows, triton_sampling
from alipes.kernels.shapes import PageTable, Segment, Workspace
from alipes.kernels.triton_attention import PagedAttention, attend_latent_step, attend_step

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
    int: "i32",
    float: "fp32",
}


def compile_only(
    self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any
) -> None:
    values = dict(zip(self.arg_names, args, strict=False))
    values |= {name: options.pop(name) for name in self.arg_names if name in options}
    constant = {p.name for p in self.params if p.is_constexpr}
    signature = {
        name: "constexpr" if name in constant else TYPES[getattr(value, "dtype", type(value))]
        for name, value in values.items()
    }
    places = {name: (index,) for index, name in enumerate(self.arg_names)}
    source = ASTSource(
        self,
        signature,
        {places[name]: values[name] for name in constant},
        # What the launcher finds out by itself: numbers that are multiples of 16, and addresses.
        {
            places[name]: [["tt.divisibility", 16]]
            for name, value in values.items()
            if name not in constant and not isinstance(value, float) and is_even(value)
        },
    )
    compiled = triton.compile(source, target=TARGET, options=options)
    print(self.__name__, compiled.metadata.shared, flush=True)


def is_even(value: Any) -> bool:
    return not isinstance(value, int) or value % 16 == 0


def attention() -> None:
    scratch = Workspace(torch.empty(0), torch.empty(0))
    batch = (Segment(0, 8, 0, ((0, 8),)), Segment(8, 1, 599, ((64, 600),)))
    pages = PageTable(torch.zeros(9, 16, dtype=torch.int32), torch.zeros(9).long(), 64)
    for heads, keys, dim, dtype in ((16, 4, 128, torch.float32), (16, 2, 256, torch.float16)):
        pool = torch.empty(1024, 2, keys, dim, dtype=dtype)
        PagedAttention().attend(torch.empty(9, heads, dim), pool, pool, batch, scratch)
        attend_step(torch.empty(9, heads, dim), pool, pages)
    pool = torch.empty(1024, 576)
    q = torch.empty(9, 128, 576)
    PagedAttention().attend_latent(q, pool, pool, batch, 512, 0.1, scratch)
    attend_latent_step(q, pool.half(), pages, 512, 0.1)


def experts() -> None:
    chosen = torch.arange(8).expand(64, 8)
    for dtype, rows in ((torch.float32, 64), (torch.float16, 2)):
        gate_up, down = torch.empty(32, 96, 64, dtype=dtype), torch.empty(32, 64, 48, dtype=dtype)
        scratch = Workspace(torch.empty(0), torch.empty(0))
        weights = torch.empty(rows, 8)
        triton_experts.experts(
            torch.empty(rows, 64), weights, chosen[:rows], gate_up, down, scratch
        )


def delta_rule() -> None:
    q, k = torch.zeros(2, 100, 16, 128)
    v, g, beta = torch.zeros(100, 32, 128), torch.zeros(100, 32), torch.zeros(100, 32)
    triton_delta.delta_chunk(q, k, v, g, beta, torch.zeros(32, 128, 128))
    inputs = (one[:2] for one in (q, k, v, g, beta))
    triton_delta.delta_step(*inputs, torch.zeros(2, 32, 128, 128))


def rows_and_penalties() -> None:
    for width in (4096, 13):
        pool = torch.empty(8, width, dtype=torch.uint8)
        places = torch.tensor([0, 2, 4])
        triton_rows.copy_out(pool, places, pool.clone(), places)
        triton_rows.move(pool.flatten(), [(0, width, width)])
    triton_sampling.penalize(torch.empty(1000), torch.arange(9), 4, 1.1, 0.1, 0.1)


if __name__ == "__main__":
    JITFunction.run = compile_only
    attention()
    experts()
    delta_rule()
    rows_and_penalties()
