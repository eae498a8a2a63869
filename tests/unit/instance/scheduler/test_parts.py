from __future__ import annotations

import itertools

import numpy as np
import pytest

from alipes.instance.contract import (
    Failed,
    FailureClass,
    InstanceSettings,
    ModelReport,
    Pool,
    Submit,
    Targets,
    chain_keys,
)
from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.admission import invalid
from alipes.instance.scheduler.fits import LinearFit
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import WaitingQueue, place
from alipes.instance.scheduler.sequence import MOVES, CallState, Sequence, given_keys

REPORT = ModelReport(
    "m", "m", context=100, vocab_size=10, weight_bytes=1, block_bytes=1, kv_blocks=20
)
SETTINGS = InstanceSettings("i", Pool.HOT, (), Targets(), "", block_tokens=4)


def ids(*tokens: int) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def call(number: int = 1, tokens: bytes = ids(1, 2), max_tokens: int = 4, **more: object) -> Submit:
    fields: dict[str, object] = {"model": "m", "root": bytes(16)}
    return Submit(  # type: ignore[misc]
        call_id=number.to_bytes(16, "big"), tokens=tokens, max_tokens=max_tokens, **(fields | more)
    )


def problem(submission: Submit) -> Failed:
    failed = invalid(submission, {"m": REPORT}, SETTINGS)
    assert failed is not None
    assert failed.failure is FailureClass.INVALID
    return failed


@pytest.mark.parametrize(
    ("submission", "field"),
    [
        (call(model="other"), "model"),
        (call(root=b"short"), "root"),
        (call(max_tokens=0), "max_tokens"),
        (call(tokens=b""), "tokens"),
        (call(tokens=b"abc"), "tokens"),
        (call(tokens=ids(1, 10)), "tokens"),
        (call(tokens=ids(-1)), "tokens"),
        (call(forced=ids(1)), "forced"),
        (call(tokens=ids(*[1] * 81)), "tokens"),
        (call(tokens=ids(*[1] * 80), max_tokens=2), "max_tokens"),
        (call(resumed=-1), "resumed"),
        (call(tokens=ids(1, 2), resumed=2), "resumed"),
        (call(tokens=ids(*[1] * 9), max_tokens=4, resumed=4), "resumed"),
    ],
)
def test_the_field_at_fault_is_named(submission: Submit, field: str) -> None:
    assert problem(submission).field == field


def test_the_last_token_drawn_needs_no_block() -> None:
    assert invalid(call(tokens=ids(*[1] * 80), max_tokens=1), {"m": REPORT}, SETTINGS) is None
    assert "81" in problem(call(tokens=ids(*[1] * 80), max_tokens=2)).reason


def test_what_was_drawn_already_needs_no_room_twice() -> None:
    resumed = call(tokens=ids(*[1] * 79), max_tokens=21, resumed=19)
    assert invalid(resumed, {"m": REPORT}, SETTINGS) is None
    failed = problem(call(tokens=ids(*[1] * 79), max_tokens=22, resumed=19))
    assert failed.field == "max_tokens"
    assert "60 prompt tokens" in failed.reason


def test_all_ages_alike_and_a_priority_is_worth_a_wait() -> None:
    queue = WaitingQueue(lambda call: call.order)
    level = 10
    for number, (arrived, priority) in enumerate([(0, 0), (5, 0), (9, 1), (11, 1), (3, -1)]):
        order = place(arrived, priority, level, number)
        queue.add(Sequence.of(call(number), arrived, order))
    assert [c.call.call_id[-1] for c in queue] == [2, 0, 3, 1, 4]
    assert (queue.tokens, queue.context) == (10, 10)
    for sequence in list(queue):
        assert queue.head is sequence
        queue.remove(sequence)
    assert (len(queue), queue.tokens, queue.context, queue.token_positions) == (0, 0, 0, 0)


def test_the_phases_of_a_slot() -> None:
    legal = {
        ("idle", "P"),
        ("idle", "switch"),
        ("switch", "idle"),
        ("P", "D1"),
        ("D1", "SP"),
        ("D1", "Dfin"),
        ("SP", "D"),
        ("D", "SP"),
        ("D", "Dfin"),
        ("Dfin", "idle"),
    }
    for now, then in itertools.product(Phase, Phase):
        if (now, then) in legal:
            assert phases.move(now, then) is then
        else:
            with pytest.raises(ValueError, match=f"phase {now} cannot enter {then}"):
                phases.move(now, then)


def test_an_illegal_move_of_a_call_changes_nothing() -> None:
    for state, then in itertools.product(CallState, CallState):
        sequence = Sequence.of(call(), 0, (0, 0))
        sequence.state = state
        if then in MOVES[state]:
            sequence.move(then)
            assert sequence.state is then
        else:
            with pytest.raises(ValueError, match=f"{state} call cannot become {then}"):
                sequence.move(then)
            assert sequence.state is state


def test_an_ended_call_never_moves_and_only_residents_are_saved() -> None:
    assert not MOVES[CallState.ENDED]
    savable = {state for state, then in MOVES.items() if CallState.SAVED in then}
    assert savable == {CallState.PREFILL, CallState.DECODE}


@pytest.mark.parametrize("prior", [(1e-9, 1e-9, 1e-12), (10.0, 1.0, 1e-3)])
def test_a_profile_finds_the_costs_whatever_the_prior(prior: tuple[float, float, float]) -> None:
    fit = LinearFit(prior, (1.0, 512.0, 512.0 * 512.0))
    rng = np.random.default_rng(3)
    true = (0.02, 0.001, 1e-7)
    assert fit.coefficients == pytest.approx(prior)
    for _ in range(200):
        tokens = int(rng.integers(16, 512))
        features = (1.0, tokens, tokens * int(rng.integers(tokens, 8000)))
        exact = sum(t * f for t, f in zip(true, features, strict=True))
        fit.observe(features, exact * float(rng.uniform(0.97, 1.03)))
    features = (1.0, 300, 300 * 4000)
    exact = sum(t * f for t, f in zip(true, features, strict=True))
    found = sum(t * f for t, f in zip(fit.coefficients, features, strict=True))
    assert found == pytest.approx(exact, rel=0.03)
    assert fit.samples == 200


def test_one_measurement_outweighs_the_prior() -> None:
    fit = LinearFit((1e-6, 1e-9, 1e-12), (1.0, 8.0, 8192.0))
    fit.observe((1.0, 4, 2000), 0.1)
    found = sum(t * f for t, f in zip(fit.coefficients, (1.0, 4, 2000), strict=True))
    assert found == pytest.approx(0.1, rel=0.1)


def test_costs_are_never_negative() -> None:
    fit = LinearFit((0.1, 0.1, 0.1), (1.0, 1.0, 1.0))
    for n in range(1, 50):
        fit.observe((1.0, n, 0.0), max(0.01, 1.0 - 0.02 * n))
    assert min(fit.coefficients) >= 0.0


@pytest.mark.parametrize("features", [(1.0, 8.0, 8192.0), (1.0, 3.0, 500.0)])
def test_a_profile_survives_a_process_that_was_stopped(features: tuple[float, ...]) -> None:
    """For ten hours, between two iterations of a tenth of a millisecond."""
    fit = LinearFit((0.1, 0.1, 0.1), (1.0, 8.0, 8192.0))
    for seconds in (1e-4, 1e-4, 36_000.0, 36_000.0, 1e-4):
        fit.observe(features, seconds)
        assert all(0.0 <= c < 1e6 for c in fit.coefficients)
    for _ in range(20):
        fit.observe(features, 1e-4)
    assert np.dot(fit.coefficients, features) == pytest.approx(1e-4, rel=0.1)


def test_a_profile_follows_a_change() -> None:
    fit = LinearFit((0.1, 0.1, 0.1), (1.0, 8.0, 8192.0))
    for seconds in (0.1, 0.3):
        for _ in range(300):
            fit.observe((1.0, 4, 1000), seconds)
    found = sum(t * f for t, f in zip(fit.coefficients, (1.0, 4, 1000), strict=True))
    assert found == pytest.approx(0.3, rel=0.05)


def test_a_stretch_teaches_about_what_its_iterations_do() -> None:
    """Batches come and go, as in slots; each decodes for a while, its contexts growing."""
    generator = np.random.default_rng(5)
    prior = ((0.05, 0.01, 1e-6), (1.0, 8.0, 8192.0))
    single, stretched = LinearFit(*prior), LinearFit(*prior)
    for stretch in range(40):
        calls, steps = int(generator.integers(1, 16)), int(generator.integers(1, 300))
        contexts = int(generator.integers(1, 40_000)) * calls + calls * np.arange(steps)
        seconds = 0.012 + 3e-4 * calls + 2e-7 * contexts
        for context, taken in zip(contexts, seconds, strict=True):
            single.observe((1.0, calls, context), taken)
        mean = (1.0, calls, float(contexts.mean()))
        stretched.observe(mean, float(seconds.mean()), steps)
        assert stretched.samples == single.samples
        for features in (mean, (1.0, 8, 160_000)):
            predicted = [np.dot(fit.coefficients, features) for fit in (single, stretched)]
            assert predicted[1] == pytest.approx(predicted[0], rel=0.03 if stretch else 0.3)


def test_an_estimate_carries_the_coefficients() -> None:
    profile = CostProfile.prior(REPORT, "cpu", 4)
    assert profile.estimate().samples == 0
    profile.prefill.observe((1.0, 100, 10_000), 0.2)
    profile.switch.observe(SwitchReport(0.5, h2d_bytes=REPORT.weight_bytes))
    profile.switch.turned(0.3)
    estimate = profile.estimate()
    assert estimate.samples == 2
    assert estimate.switch == pytest.approx(0.8, rel=0.05)
    predicted = (
        estimate.prefill_base + 100 * estimate.prefill_token + 100 * 100 * estimate.prefill_context
    )
    assert predicted == pytest.approx(profile.prefill_seconds(1, 100, 10_000))
    profile.restore.observe((1.0, 400), 0.04)
    estimate = profile.estimate()
    restored = estimate.restore_base + 400 * estimate.restore_token
    assert restored == pytest.approx(profile.restore_seconds(1, 400))
    assert restored == pytest.approx(0.04, rel=0.1)
    prior = CostProfile.prior(REPORT, "cuda:1", 4).estimate()
    assert prior.switch < estimate.switch
    assert 0 < prior.restore_token < CostProfile.prior(REPORT, "cpu", 4).estimate().restore_token


@pytest.mark.parametrize("blocks", [1, 3])
def test_keys_that_come_with_a_call_are_taken_only_where_they_can_be_right(blocks: int) -> None:
    tokens = np.arange(blocks * 4 + 2, dtype="<i4")
    keys = chain_keys(bytes(16), tokens, 4)

    def given(joined: bytes) -> list[bytes]:
        call = Submit(bytes(16), "m", bytes(16), tokens.tobytes(), 1, keys=joined)
        return given_keys(call, 4)

    assert given(b"".join(keys)) == keys
    assert given(b"") == given(b"".join(keys[:-1])) == given(b"".join(keys) + b"x") == []
    assert given(b"".join([*keys[:-1], bytes(16)])) == []
