"""Lower bounds are below what any run takes, and are reached where nothing is in the way."""

from __future__ import annotations

import pytest

from alipes.replay.sim.bounds import bounds
from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import load_hardware
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Wait, reply_stream

MODEL = "qwen3-32b"
COSTS = engine_costs(load_hardware("b200-tp4"), MODEL)
CHUNK, RUNNING = 8192, 64


def call(prompt: int, output: int, kept: int = 0, gap: float = 0.0, shared: int = 0) -> Call:
    spans = [Span(7, 0, shared), Span(-1 - prompt, 0, prompt - kept - shared)]
    return Call(prompt, output, kept, tuple(s for s in spans if s.length), gap)


def session(name: str, *calls: Call) -> Session:
    return Session(name, (Branch(MAIN, calls),), MODEL)


def one(found: Session, instances: int = 1) -> float:
    return bounds([found], {MODEL: COSTS}, instances, CHUNK, RUNNING, None, True).alone[found.id]


def test_alone_a_session_takes_its_prefill_decode_and_gaps() -> None:
    found = session("s", call(1000, 11), call(1500, 21, kept=1011, gap=2.0))
    first = COSTS.cold + COSTS.prefill([(1000, 0)]) + COSTS.decode(1, 1001, 10)
    second = COSTS.prefill([(489, 1011)]) + COSTS.decode(1, 1501, 20)
    assert one(found) == pytest.approx((first + second) / 1e9 + 2.0)


def test_a_prompt_is_computed_in_chunks() -> None:
    long = session("s", call(20_000, 1))
    chunks = [(8192, 0), (8192, 8192), (3616, 16_384)]
    expected = COSTS.cold + sum(COSTS.prefill([chunk]) for chunk in chunks)
    assert one(long) == pytest.approx(expected / 1e9)


def test_content_of_all_sessions_may_be_cached() -> None:
    found = session("s", call(1000, 1, shared=900))
    assert one(found) == pytest.approx(COSTS.prefill([(100, 900)]) / 1e9)


def test_content_that_comes_again_in_its_session_may_be_cached() -> None:
    """Whichever of two sub-agents is first computes what both begin with."""
    common = Span(-9, 0, 900)
    one_of, other = (Call(1000, 1, 0, (common, Span(-n, 0, 100))) for n in (1, 2))
    subs = (Branch("one", (one_of,), MAIN, 0), Branch("two", (other,), MAIN, 0))
    found = Session("s", (Branch(MAIN, (call(1000, 1, shared=999),)), *subs), MODEL)
    last = COSTS.prefill([(100, 900)]) + COSTS.prefill([(1, 999)])
    assert one(found) == pytest.approx(last / 1e9)


def test_a_reply_that_a_later_prompt_adds_may_be_cached() -> None:
    again = Call(1100, 1, 1000, (Span(reply_stream(MAIN, 0), 0, 99), Span(-3, 0, 1)))
    found = session("s", call(1000, 101, shared=999), again)
    seconds = COSTS.prefill([(1, 999)]) + COSTS.decode(1, 1001, 100) + COSTS.prefill([(1, 1099)])
    assert one(found) == pytest.approx(seconds / 1e9)


def test_branches_run_side_by_side_and_are_joined() -> None:
    main = Branch(
        MAIN,
        (
            call(1000, 1),
            Call(1500, 1, 1001, (Span(-5, 0, 499),), 0.0, Wait.BRANCH, ("one", "two")),
        ),
    )
    subs = tuple(
        Branch(name, (call(prompt, 1, gap=seconds),), MAIN, 0)
        for name, prompt, seconds in (("one", 1999, 1.0), ("two", 2000, 3.0))
    )
    found = Session("s", (main, *subs), MODEL)
    first = COSTS.cold + COSTS.prefill([(1000, 0)])
    sub = COSTS.cold + COSTS.prefill([(2000, 0)])
    last = COSTS.prefill([(499, 1001)])
    assert one(found) == pytest.approx((first + sub + last) / 1e9 + 3.0)


def test_warm_up_is_in_no_percentile() -> None:
    many = [session(str(n), call(prompt, 11)) for n, prompt in enumerate((90_000, 90_000, 1000))]
    found = bounds(many, {MODEL: COSTS}, 1, CHUNK, RUNNING, None, True, warmup=2)
    assert found.p50 == found.p95 == found.alone["2"]
    assert found.makespan >= found.alone["0"]


def test_the_fluid_device_bounds_what_arrives_together() -> None:
    many = [session(f"s{i}", call(5000, 200)) for i in range(50)]
    found = bounds(many, {MODEL: COSTS}, 1, CHUNK, RUNNING, None, True)
    apart = bounds(many, {MODEL: COSTS}, 1, CHUNK, RUNNING, None, False)
    assert apart.p50 == apart.alone["s0"] < found.p50 < found.p95 <= found.makespan
    halved = bounds(many, {MODEL: COSTS}, 2, CHUNK, RUNNING, None, True)
    assert halved.makespan == pytest.approx(max(found.makespan / 2, halved.alone["s0"]))
