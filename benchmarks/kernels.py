"""Every operation of this machine's column of kernels, against its reference and its bound.

The bound of an operation is the time in which its bytes could be read (or, where it copies,
copied) and its products computed, at rates measured in the same run; what it moves beyond that,
and what it computes besides products, counts for nothing. Fractions near 1 are at the bound.
``attend_step`` and ``attend_latent_step`` are of recorded steps, which GPUs alone have: on a CPU no
engine runs them, and their variant is the reference itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, Final

import torch
from common import Claim, arguments, at_least, write_report

from alipes.kernels.routing import Routing
from alipes.kernels.shapes import KvHeads, PageTable, Segment, Workspace
from alipes.kernels.table import REFERENCE, Kernels, kernels_for, variants

Tensor = torch.Tensor
CUDA: Final = torch.cuda.is_available()
DEVICE: Final = torch.device("cuda" if CUDA else "cpu")
BLOCK: Final = 64
DTYPES: Final = (torch.float32, torch.float16)
"""Of keys, values and latents."""
REPEATS: Final = 5
SECONDS: Final = 0.6
"""Both forms of a case are timed for about this long, and a few times at least."""
CLAIMED: Final = ("attend", "delta_chunk", "delta_step", "copy_out", "penalize")
"""Where every case is beyond doubt; others gain with some sizes only."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured here: bytes a second read, and copied between host and device (two places in
    memory on a CPU) or within the device; float32 operations a second of products."""

    read: float
    across: float
    within: float
    product: float


@dataclass(frozen=True, slots=True)
class Case:
    """``work`` does the operation with the form that it is given, of a column for a model whose
    keys and values are ``held``."""

    operation: str
    shape: str
    work: Callable[[Any], Any]
    read: float = 0.0
    across: float = 0.0
    within: float = 0.0
    product: float = 0.0
    held: frozenset[KvHeads] = frozenset()

    def bound(self, rates: Rates) -> float:
        """Seconds."""
        kinds = ("read", "across", "within", "product")
        return max(getattr(self, kind) / getattr(rates, kind) for kind in kinds)


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measured() -> Rates:
    def best(work: Callable[[], Any]) -> float:
        return min(seconds(work) for _ in range(REPEATS + 1))

    memory = torch.ones(64 << 20, device=DEVICE)
    other, square = torch.empty_like(memory), torch.ones(2048, 2048, device=DEVICE)
    host = torch.ones(64 << 20, pin_memory=CUDA)
    return Rates(
        memory.nbytes / best(memory.sum),
        memory.nbytes / best(lambda: memory.copy_(host, non_blocking=True)),
        memory.nbytes / best(lambda: other.copy_(memory)),
        2 * 2048**3 / best(lambda: square @ square),
    )


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def named(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]


def apart(length: int) -> int:
    """Slots from one call's first to the next one's: whole blocks."""
    return 2 * (length // BLOCK + 2) * BLOCK


def scattered(calls: int, count: int, start: int) -> tuple[Segment, ...]:
    """``count`` rows of each of ``calls``, from position ``start`` on, in blocks that lie one
    after another but for one jump in the middle."""
    segments = []
    for call in range(calls):
        length = start + count
        slot, half = call * apart(length), length // 2 // BLOCK * BLOCK
        halves = ((slot, half), (slot + half + BLOCK, length - half))
        runs = tuple(run for run in halves if run[1])
        segments.append(Segment(call * count, count, start, runs, BLOCK))
    return tuple(segments)


def attention(quick: bool) -> Iterator[Case]:
    """Decode of several calls, and a chunk behind a prefix."""
    context = 1024 if quick else 4096
    heads, keys, dim, latent, rank = 16, 4, 128, 576, 512
    for dtype, (calls, count) in product(DTYPES, ((8, 1), (1, 256))):
        batch, rows, seen = scattered(calls, count, context), calls * count, context + count / 2
        slots = calls * apart(context + count)
        pool, latents = normal(slots, 2, keys, dim).to(dtype), normal(slots, latent).to(dtype)
        q, wide = normal(rows, heads, dim), normal(rows, heads, latent)
        kv = pool[torch.cat([s.slots()[s.start :] for s in batch]).to(DEVICE)].float()
        own = latents[torch.cat([s.slots()[s.start :] for s in batch]).to(DEVICE)].float()
        scratch = Workspace(torch.empty(0), torch.empty(slots * 2 * keys * dim, device=DEVICE))
        shape = f"{calls} x {count} rows after {context}, {named(dtype)}"

        def attend(
            form: Any, q: Tensor = q, kv: Tensor = kv, pool: Tensor = pool,
            batch: Any = batch, scratch: Workspace = scratch,
        ) -> None:  # fmt: skip
            form(q, kv, pool, batch, scratch)

        def attend_latent(
            form: Any, q: Tensor = wide, own: Tensor = own, pool: Tensor = latents,
            batch: Any = batch, scratch: Workspace = scratch,
        ) -> None:  # fmt: skip
            form(q, own, pool, batch, rank, 0.1, scratch)

        yield Case(
            "attend",
            shape,
            attend,
            read=calls * (context + count) * pool[0].nbytes,
            product=4 * rows * heads * dim * seen,
            held=frozenset({(named(dtype), dim)}),
        )
        yield Case(
            "attend_latent",
            shape,
            attend_latent,
            read=calls * (context + count) * latents[0].nbytes,
            product=2 * rows * heads * (latent + rank) * seen,
        )


def paged_decode(quick: bool) -> Iterator[Case]:
    """Rows of which one sees all that the table has room for, the others a quarter."""
    calls, context = 8, 1024 if quick else 4096
    heads, keys, dim, latent, rank = 16, 4, 128, 576, 512
    blocks = torch.randperm(calls * context // BLOCK, device=DEVICE).int().view(calls, -1)
    positions = torch.full((calls,), context // 4 - 1, device=DEVICE)
    positions[0] = context - 1
    pages, seen = PageTable(blocks, positions, BLOCK), context * (calls + 3) / 4
    q, wide = normal(calls, heads, dim), normal(calls, heads, latent)
    for dtype in DTYPES:
        pool = normal(calls * context, 2, keys, dim).to(dtype)
        latents = normal(calls * context, latent).to(dtype)
        shape = f"{calls} rows, up to {context}, {named(dtype)}"
        yield Case(
            "attend_step",
            shape,
            lambda form, pool=pool: form(q, pool, pages),
            read=seen * pool[0].nbytes,
            product=4 * heads * dim * seen,
        )
        yield Case(
            "attend_latent_step",
            shape,
            lambda form, pool=latents: form(wide, pool, pages, rank, 0.1),
            read=seen * latents[0].nbytes,
            product=2 * heads * (latent + rank) * seen,
        )


def products(quick: bool) -> Iterator[Case]:
    """Weights in float16, for steps of one row and of many."""
    width, out = 1024, 4096 if quick else 16_384
    weight, stack = normal(out, width).half(), normal(16, 512, 128).half()
    gate_up, down = normal(16, 1024, width).half(), normal(16, width, 512).half()
    scratch = Workspace(torch.empty(weight.numel(), device=DEVICE), torch.empty(0))
    routing, router = Routing(4, normalize=True), normal(16, width)
    for rows in (1, 64):
        x, heads = normal(rows, width), normal(rows, 16, 512)
        weights, chosen = REFERENCE.route(x, router, None, routing)
        used, shape = len(chosen.unique()), f"{rows} rows"
        yield Case(
            "linear",
            f"{shape} by {out} x {width}",
            lambda form, x=x: form(x, weight, scratch),
            read=weight.nbytes,
            product=2 * rows * weight.numel(),
        )
        yield Case(
            "per_head",
            f"{shape} by 16 x 512 x 128",
            lambda form, x=heads: form(x, stack, scratch),
            read=stack.nbytes,
            product=2 * rows * stack.numel(),
        )
        yield Case(
            "experts",
            f"{shape}, 4 of 16 experts",
            lambda form, x=x, w=weights, c=chosen: form(x, w, c, gate_up, down, scratch),
            read=used * (gate_up[0].nbytes + down[0].nbytes),
            product=2 * 4 * rows * (gate_up[0].numel() + down[0].numel()),
        )
        yield Case(
            "route",
            f"{shape}, 16 experts",
            lambda form, x=x: form(x, router, None, routing),
            read=router.nbytes,
            product=2 * rows * router.numel(),
        )


def delta_rule(quick: bool) -> Iterator[Case]:
    keys, heads, size, tokens, calls = 8, 16, 128, 128 if quick else 512, 8
    q, k = normal(tokens, keys, size) / size, normal(tokens, keys, size) / size**0.5
    v, g, beta = normal(tokens, heads, size), -normal(tokens, heads).abs(), normal(tokens, heads)
    few = tuple(one[:calls] for one in (q, k, v, g, beta.sigmoid()))
    state, states = normal(heads, size, size), normal(calls, heads, size, size)
    per_token = 6 * heads * size * size
    yield Case(
        "delta_chunk",
        f"{tokens} tokens, {heads} heads",
        lambda form: form(q, k, v, g, beta.sigmoid(), state),
        product=per_token * tokens,
    )
    yield Case(
        "delta_step",
        f"{calls} calls, {heads} heads",
        lambda form: form(*few, states),
        read=states.nbytes,
        product=per_token * calls,
    )
    a, rate = normal(tokens, heads), normal(heads)
    yield Case("delta_gates", f"{tokens} tokens", lambda form: form(a, beta, rate, rate))
    channels = heads * size
    x, weight, past = normal(tokens, channels), normal(channels, 4), normal(channels, 3)
    pasts = normal(calls, channels, 3)
    shape = f"{tokens} tokens, {channels} channels"
    yield Case("conv_chunk", shape, lambda form: form(x, weight, past), read=x.nbytes)
    yield Case(
        "conv_step",
        f"{calls} calls, {channels} channels",
        lambda form: form(x[:calls], weight, pasts),
        read=pasts.nbytes,
    )
    yield Case("l2_norm", f"{tokens} x {heads}", lambda form: form(v, 1e-6), read=v.nbytes)
    yield Case(
        "gated_norm",
        f"{tokens} x {heads}",
        lambda form: form(v, weight[:size, 0], v, 1e-6),
        read=v.nbytes,
    )


def rows_of_blocks(quick: bool) -> Iterator[Case]:
    """Slabs of 16 KiB, scattered on both sides, and chunks that move within the device."""
    count, slab = (1024 if quick else 4096), 16 << 10
    pool = torch.zeros(2 * count, slab, dtype=torch.uint8, device=DEVICE)
    host = torch.zeros(count, slab, dtype=torch.uint8, pin_memory=CUDA)
    rows, slabs = torch.randperm(2 * count)[:count], torch.randperm(count)
    shape, nbytes = f"{count} slabs of 16 KiB", float(count * slab)
    yield Case("copy_out", shape, lambda form: form(pool, rows, host, slabs), across=nbytes)
    yield Case("copy_in", shape, lambda form: form(host, slabs, pool, rows), across=nbytes)
    yield Case("checksums", shape, lambda form: form(host, slabs), read=nbytes)
    flat, chunk = pool.flatten(), 1 << 20
    moves = [(at, at + flat.numel() // 2, chunk) for at in range(0, int(nbytes), chunk)]
    yield Case(
        "move", f"{len(moves)} chunks of 1 MiB", lambda form: form(flat, moves), within=nbytes
    )
    kv, held = normal(512, 2, 4, 128), normal(8192, 2, 4, 128)
    slots = torch.randperm(8192, device=DEVICE)[:512]
    yield Case("write_kv", "512 rows", lambda form: form(held, slots, kv), within=kv.nbytes)


def elementwise(quick: bool) -> Iterator[Case]:
    rows, width, vocab = (128 if quick else 512), 2048, 151_936
    x, weight, logits = normal(rows, width), normal(width), normal(vocab)
    heads, angles = normal(rows, 16, 128), torch.polar(normal(rows, 64), normal(rows, 64))
    angles /= angles.abs()
    history = torch.randint(0, vocab, (2000,), device=DEVICE)
    probs, arrivals = logits.softmax(-1), normal(vocab).double().abs() + 1e-9
    shape = f"{rows} x {width}"
    yield Case("rms_norm", shape, lambda form: form(x, weight, 1e-6), read=x.nbytes)
    yield Case("silu_mul", shape, lambda form: form(x), read=x.nbytes)
    yield Case("rope", f"{rows} x 16", lambda form: form(heads, angles), read=heads.nbytes)
    yield Case(
        "penalize",
        "2000 of 151,936 tokens",
        lambda form: form(logits, history, 1000, 1.0001, 0.0, 1e-6),
    )
    for name, limits in (("top 50", (50, 1.0, 0.0)), ("top-p 0.9", (0, 0.9, 0.0))):
        yield Case(
            "restrict",
            f"151,936 tokens, {name}",
            lambda form, limits=limits: form(logits * 4, *limits),
            read=logits.nbytes,
        )
    yield Case("race", "151,936 tokens", lambda form: form(probs, arrivals), read=probs.nbytes)


def compare(case: Case, forms: tuple[Any, Any]) -> tuple[float, float]:
    """Best seconds of the first form, and the median, over runs in pairs, of how many times as
    long the second takes. A first pair does not count: it allocates and compiles."""
    pairs: list[tuple[float, float]] = []
    while len(pairs) <= REPEATS or (len(pairs) < 40 and sum(map(sum, pairs)) < SECONDS):
        ours, theirs = (seconds(lambda form=form: case.work(form)) for form in forms)
        pairs.append((ours, theirs))
    pairs = pairs[1:]
    return min(ours for ours, _ in pairs), median(theirs / ours for ours, theirs in pairs)


def row_of(case: Case, columns: tuple[Kernels, Kernels], rates: Rates) -> dict[str, Any]:
    forms = getattr(columns[0], case.operation), getattr(columns[1], case.operation)
    same = forms[0] is forms[1]
    row: dict[str, Any] = {
        "operation": case.operation,
        "case": case.shape,
        "variant": variants(columns[0])[case.operation],
    }
    ours, gain = compare(case, forms)
    bound = case.bound(rates)
    row["ms"], row["x reference"] = ours * 1e3, "" if same else round(gain, 2)
    return row | {"of bound": round(bound / ours, 3) if bound else ""}


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """The slowest case of each operation that we made faster, in times of its reference."""
    slowest: dict[str, float] = {}
    for row in rows:
        if row["operation"] in CLAIMED and row["x reference"]:
            gain = float(row["x reference"])
            slowest[row["operation"]] = min(gain, slowest.get(row["operation"], gain))
    return [
        at_least(f"{name} no slower than its reference (ours)", gain, "x", 1.0)
        for name, gain in slowest.items()
    ]


def main() -> int:
    options = arguments(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    torch.manual_seed(1)
    rows = []
    with torch.inference_mode():
        rates = measured()
        for make in (attention, paged_decode, products, delta_rule, rows_of_blocks, elementwise):
            for case in make(options.quick):
                narrow = 1 if case.shape.startswith("1 rows") else None
                column = kernels_for(DEVICE, narrow, case.held)
                rows.append(row_of(case, (column, REFERENCE), rates))
    notes = {
        "device": torch.cuda.get_device_name() if CUDA else "cpu",
        "threads": torch.get_num_threads(),
        "read_bytes_per_s": rates.read,
        "copied_bytes_per_s": rates.across,
        "copied_within_bytes_per_s": rates.within,
        "product_flop_per_s": rates.product,
    }
    return write_report("kernels", rows, claims(rows), options.json, notes)


if __name__ == "__main__":
    sys.exit(main())
