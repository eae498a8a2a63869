"""Every form of every operation against the reference."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from alipes.kernels import portable, table
from alipes.kernels.routing import Routing
from alipes.kernels.shapes import Segment, Workspace
from alipes.kernels.table import (
    CPU,
    CPU_NARROW,
    NARROW_ROWS,
    PORTABLE,
    REFERENCE,
    Kernels,
    kernels_for,
    variants,
)

EITHER = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
COLUMNS = {"portable": PORTABLE, "cpu": CPU, "cpu narrow": CPU_NARROW}


@pytest.fixture(params=COLUMNS.values(), ids=COLUMNS.keys())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    torch.manual_seed(7)
    with torch.inference_mode():
        yield request.param


def workspace(widen: int = 4096, slots: int = 2048, heads: int = 2, dim: int = 16) -> Workspace:
    return Workspace(torch.empty(widen), torch.empty(slots * 2 * heads * dim))


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_rms_norm(kernels: Kernels) -> None:
    for shape in ((1, 64), (5, 3, 16)):
        x, weight = torch.randn(shape) * 3, torch.randn(shape[-1])
        close(kernels.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_a_slice_of_heads(kernels: Kernels) -> None:
    x, weight = torch.randn(3, 8, 16)[:, 2:5], torch.randn(16)
    close(kernels.rms_norm(x, weight, 1e-6), REFERENCE.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("rows", [1, 7])
def test_rope_rotates_in_place_and_leaves_values_alone(kernels: Kernels, rows: int) -> None:
    qkv = torch.randn(rows, 6, 16)
    angles = torch.polar(torch.ones(rows, 8), torch.randn(rows, 8))
    want = qkv.clone()
    REFERENCE.rope(want[:, :4], angles)
    kernels.rope(qkv[:, :4], angles)
    close(qkv, want)


@pytest.mark.parametrize("rows", [0, 1, 4, 33])
def test_linear_in_float32(kernels: Kernels, rows: int) -> None:
    x, weight = torch.randn(rows, 48), torch.randn(96, 48)
    close(kernels.linear(x, weight, workspace()), REFERENCE.linear(x, weight, workspace()), 1e-4)


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("scratch", [96 * 48, 1000], ids=["whole", "pieces"])
def test_linear_in_float16(kernels: Kernels, rows: int, scratch: int) -> None:
    x, weight = torch.randn(rows, 48), torch.randn(96, 48).half()
    got = kernels.linear(x, weight, workspace(scratch))
    assert got.dtype == torch.float32
    close(got, REFERENCE.linear(x, weight, workspace()), 1e-4 if kernels is CPU else 3e-2)


def test_widened_float16_is_exact_where_the_reference_is() -> None:
    x, weight = torch.randn(9, 48), torch.randn(96, 48).half()
    close(CPU.linear(x, weight, workspace()), torch.nn.functional.linear(x, weight.float()), 1e-5)


def test_silu_mul(kernels: Kernels) -> None:
    gate_up = torch.randn(5, 64)
    close(kernels.silu_mul(gate_up), REFERENCE.silu_mul(gate_up))


@EITHER
def test_write_kv_touches_only_its_slots(kernels: Kernels, dtype: torch.dtype) -> None:
    pool, slots = torch.randn(32, 2, 2, 16).to(dtype), torch.tensor([30, 3, 4])
    kv, want = torch.randn(3, 6, 16)[:, 2:].reshape(3, 2, 2, 16), pool.clone()
    REFERENCE.write_kv(want, slots, kv)
    kernels.write_kv(pool, slots, kv)
    assert torch.equal(pool, want)
    assert torch.equal(pool[slots], kv.to(dtype))


def layouts() -> Iterator[tuple[str, list[Segment]]]:
    """Batches over a pool of 64 blocks of 16 slots; every other block scatters a table."""
    yield "first chunk", [Segment(0, 40, 0, ((0, 40),))]
    yield "later chunk", [Segment(0, 24, 40, ((160, 64),))]
    yield "one token", [Segment(0, 1, 70, ((32, 71),))]
    yield "first token", [Segment(0, 1, 0, ((16, 1),))]
    yield "split prefix", [Segment(0, 10, 30, ((96, 32), (0, 8)))]
    yield "split decode", [Segment(0, 1, 40, ((96, 32), (0, 9)))]
    many = tuple((16 * block, 16) for block in range(40, 0, -2))
    yield "scattered decode", [Segment(0, 1, 319, many)]
    yield "scattered chunk", [Segment(0, 20, 300, many)]
    parts = [(0, 5, 0, ((512, 5),)), (5, 1, 90, ((0, 91),)), (6, 33, 15, ((256, 48),))]
    yield "mixed", [Segment(*part) for part in parts]


@pytest.mark.parametrize("segments", [s for _, s in layouts()], ids=[n for n, _ in layouts()])
@pytest.mark.parametrize("heads", [2, 6])
@EITHER
def test_attend(kernels: Kernels, segments: list[Segment], heads: int, dtype: torch.dtype) -> None:
    rows = sum(segment.count for segment in segments)
    pool, qkv = torch.randn(1024, 2, 2, 16).to(dtype), torch.randn(rows, heads + 4, 16)
    q, kv = qkv[:, :heads], qkv[:, heads:].reshape(rows, 2, 2, 16)
    slots = torch.cat([s.slots()[s.start :] for s in segments])
    REFERENCE.write_kv(pool, slots, kv)
    got = kernels.attend(q, kv, pool, segments, workspace())
    assert got.shape == (rows, heads * 16)
    close(got, REFERENCE.attend(q, kv, pool, segments, workspace()))


@pytest.mark.parametrize("segments", [s for _, s in layouts()], ids=[n for n, _ in layouts()])
@pytest.mark.parametrize("heads", [1, 5])
@EITHER
def test_attend_latent(
    kernels: Kernels, segments: list[Segment], heads: int, dtype: torch.dtype
) -> None:
    rows = sum(segment.count for segment in segments)
    pool, q = torch.randn(1024, 24).to(dtype), torch.randn(rows, heads, 24)
    latents = torch.randn(rows, 24)
    slots = torch.cat([s.slots()[s.start :] for s in segments])
    REFERENCE.write_kv(pool, slots, latents)
    got = kernels.attend_latent(q, latents, pool, segments, 18, 0.3, workspace())
    assert got.shape == (rows, heads, 18)
    close(got, REFERENCE.attend_latent(q, latents, pool, segments, 18, 0.3, workspace()))


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("scratch", [6 * 96, 100, 96], ids=["whole", "pieces", "one by one"])
def test_per_head(kernels: Kernels, rows: int, dtype: torch.dtype, scratch: int) -> None:
    stack = torch.randn(6, 20, 8).to(dtype)
    loose = dtype == torch.float16 and kernels is PORTABLE
    for weight in (stack[:, :12], stack[:, 12:].mT):
        x = torch.randn(rows, 6, weight.shape[1])
        got = kernels.per_head(x, weight, workspace(scratch))
        assert got.dtype == torch.float32
        close(got, REFERENCE.per_head(x, weight, workspace()), 3e-2 if loose else 2e-5)


ROUTINGS = (
    Routing(3, normalize=True),
    Routing(3, normalize=False),
    Routing(3, normalize=True, scale=2.5),
    Routing(3, normalize=False, groups=4, top_groups=2, scale=0.5),
    Routing(3, normalize=True, sigmoid=True, groups=4, top_groups=2, group_best=2),
)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("biased", [True, False])
def test_route(kernels: Kernels, routing: Routing, biased: bool) -> None:
    x, router = torch.randn(9, 32), torch.randn(8, 32)
    bias = torch.randn(8) if biased else None
    got, want = (column.route(x, router, bias, routing) for column in (kernels, REFERENCE))
    close(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_route_chooses_within_the_best_groups(kernels: Kernels) -> None:
    """By hand: logits of three groups of two; the bias moves the choice but not the weights."""
    x, router = torch.ones(1, 1), torch.tensor([[3.0], [-3.0], [1.0], [0.9], [2.0], [0.0]])
    probs = router.flatten().softmax(0)
    best = Routing(2, normalize=False, groups=3, top_groups=2)
    weights, chosen = kernels.route(x, router, None, best)
    assert chosen.tolist() == [[0, 4]]
    close(weights, probs[[0, 4]].unsqueeze(0))
    pairs = Routing(2, False, sigmoid=True, groups=3, top_groups=1, group_best=2, scale=2.0)
    weights, chosen = kernels.route(x, router, None, pairs)
    assert chosen.tolist() == [[2, 3]]
    close(weights, 2 * router[[2, 3]].sigmoid().t())
    weights, chosen = kernels.route(x, router, torch.tensor([0.0, 1, 0, 0, 0, 0]), pairs)
    assert chosen.tolist() == [[1, 0]]
    close(weights, 2 * router[[1, 0]].sigmoid().t())


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts(kernels: Kernels, rows: int, dtype: torch.dtype) -> None:
    x, router = torch.randn(rows, 32), torch.randn(6, 32)
    routing = REFERENCE.route(x, router, None, Routing(2, normalize=True))
    gate_up, down = torch.randn(6, 48, 32).to(dtype), torch.randn(6, 32, 24).to(dtype)
    got = kernels.experts(x, *routing, gate_up, down, workspace())
    want = REFERENCE.experts(x, *routing, gate_up, down, workspace())
    loose = dtype == torch.float16 and kernels is CPU_NARROW
    close(got, want, 0.3 if loose else 1e-3)


@pytest.mark.parametrize("slabs", [[], [4], [2, 3, 4, 5], [9, 1, 2, 0, 7, 8], [5, 4, 3]])
@pytest.mark.parametrize("staged", [1, 100, 1 << 20])
def test_rows_go_to_the_host_and_come_back_elsewhere(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, slabs: list[int], staged: int
) -> None:
    monkeypatch.setattr(portable, "_STAGED", staged)
    pool = torch.randint(0, 255, (20, 32), dtype=torch.uint8)
    places = torch.tensor(slabs, dtype=torch.int64)
    rows, elsewhere = torch.randperm(20)[: len(slabs)], torch.randperm(20)[: len(slabs)]
    host = torch.randint(0, 255, (10, 32), dtype=torch.uint8)
    want = host.clone()
    kernels.copy_out(pool, rows, host, places)
    REFERENCE.copy_out(pool, rows, want, places)
    assert torch.equal(host, want)
    assert torch.equal(host[places], pool[rows])
    want = pool.clone()
    kernels.copy_in(host, places, pool, elsewhere)
    REFERENCE.copy_in(host, places, want, elsewhere)
    assert torch.equal(pool, want)


def test_checksums_tell_rows_apart(kernels: Kernels) -> None:
    row = torch.randint(0, 255, (4096,), dtype=torch.uint8)
    swapped = row.view(torch.int32).clone()
    # Two that differ in the sign bit alone, as x and -x do.
    swapped[7] = swapped[900] ^ -(2**31)
    exchanged = swapped.clone()
    exchanged[[7, 900]] = swapped[[900, 7]]
    others = [row, swapped.view(torch.uint8), exchanged.view(torch.uint8)]
    for bit in range(8):
        others.append(row.clone())
        others[-1][513 * bit] ^= 1 << bit
    memory = torch.stack(others)
    sums = kernels.checksums(memory, torch.arange(len(others)))
    assert len(set(sums.tolist())) == len(others)
    again = kernels.checksums(memory.clone(), torch.tensor([2, 0, 2]))
    assert torch.equal(again, sums[[2, 0, 2]])


@pytest.mark.parametrize("penalties", [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (1.2, 0.5, -0.7)])
def test_penalize(kernels: Kernels, penalties: tuple[float, float, float]) -> None:
    logits, history = torch.randn(50), torch.tensor([3, 3, 8, 40, 8, 8, 3])
    got, want = logits.clone(), logits.clone()
    kernels.penalize(got, history, 4, *penalties)
    REFERENCE.penalize(want, history, 4, *penalties)
    close(got, want)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    list(itertools.product((0, 1, 5, 300, 9999), (1.0, 0.9, 0.3, 1e-9), (0.0, 0.2, 1.0))),
)
def test_restrict(kernels: Kernels, top_k: int, top_p: float, min_p: float) -> None:
    for spread in (0.01, 1.0, 8.0):
        logits = torch.randn(1000) * spread
        got = kernels.restrict(logits, top_k, top_p, min_p)
        want = REFERENCE.restrict(logits, top_k, top_p, min_p)
        close(got, want, 1e-7)
        assert bool((got > 0).any())


def test_restrict_keeps_what_it_says() -> None:
    probs = torch.tensor([0.05, 0.5, 0.15, 0.3])
    for limits, kept in {
        (2, 1.0, 0.0): [1, 3],
        (0, 0.8, 0.0): [1, 3],
        (0, 0.81, 0.0): [1, 2, 3],
        (0, 1.0, 0.5): [1, 3],
        (3, 0.6, 0.0): [1, 3],
    }.items():
        assert PORTABLE.restrict(probs.log(), *limits).nonzero().flatten().tolist() == kept


def test_the_race_is_won_by_speed_over_time(kernels: Kernels) -> None:
    probs = torch.tensor([0.0, 0.2, 0.0, 0.3, 0.5, 0.0])
    even = torch.ones(6, dtype=torch.float64)
    assert kernels.race(probs, even) == 4
    even[4] = 2.0
    assert kernels.race(probs, even) == 3
    even[0] = 1e-12
    assert kernels.race(probs, even) == 3


def test_few_rows_multiply_in_float16_only_where_they_may() -> None:
    cpu = torch.device("cpu")
    assert kernels_for(cpu, NARROW_ROWS) is CPU_NARROW
    assert kernels_for(cpu, NARROW_ROWS + 1) is CPU
    assert kernels_for(cpu, None) is CPU


@pytest.mark.parametrize("found", [True, False])
def test_cuda_has_triton_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    if found:
        pytest.importorskip("triton")
    monkeypatch.setattr(table, "find_spec", lambda name: object() if found else None)
    table._cuda.cache_clear()
    forms = variants(kernels_for(torch.device("cuda"), 1))
    table._cuda.cache_clear()
    assert forms["attend"] == ("triton_attention" if found else "reference")
    assert forms["copy_out"] == ("triton_rows" if found else "portable")
    assert forms["rms_norm"] == "portable"


def test_nothing_imports_triton_for_a_cpu() -> None:
    program = (
        "import sys, torch; from alipes.kernels.table import kernels_for;"
        "kernels_for(torch.device('cpu'), 1); sys.exit('triton' in sys.modules)"
    )
    subprocess.run((sys.executable, "-P", "-c", program), check=True)


def test_every_operation_has_the_name_of_its_form() -> None:
    assert set(variants(REFERENCE).values()) == {"reference", "delta_reference"}
    forms = variants(CPU)
    assert (forms["linear"], forms["rope"], forms["race"]) == ("cpu", "portable", "reference")
    both = variants(CPU, PORTABLE, CPU)
    assert (both["linear"], both["rope"]) == ("cpu+portable", "portable")


@pytest.mark.parametrize("moves", [[], [(0, 8, 4), (8, 16, 4)], [(0, 3, 9)], [(5, 0, 20)]])
def test_move(kernels: Kernels, moves: list[tuple[int, int, int]]) -> None:
    memory, want = torch.arange(32, dtype=torch.uint8), list(range(32))
    for source, target, count in moves:
        want[target : target + count] = want[source : source + count]
    for move in (kernels.move, REFERENCE.move):
        moved = memory.clone()
        move(moved, moves)
        assert moved.tolist() == want
