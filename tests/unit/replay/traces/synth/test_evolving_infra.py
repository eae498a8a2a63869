"""``putnam-like``, ``osworld-like`` and ``coding`` against what Evolving Infra publishes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import sqrt
from pathlib import Path

import pytest

from alipes.replay.traces.check import check
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import (
    MAIN,
    Branch,
    Call,
    Session,
    Span,
    Trace,
    Wait,
    reply_stream,
    stream_id,
)
from alipes.replay.traces.load import load
from alipes.replay.traces.statistics import statistics
from alipes.replay.traces.synth import coding, osworld, putnam
from alipes.replay.traces.synth.coding import coding as coding_of
from alipes.replay.traces.synth.osworld import osworld_like
from alipes.replay.traces.synth.putnam import putnam_like
from alipes.replay.traces.unlimited import unlimited_hits

RECORDED = Path(__file__).parents[6] / "shared/traces/claude-code-sessions.jsonl"
ROUNDED = 0.0005  # published rates have three places


def hit_rate(trace: Trace) -> tuple[float, float]:
    """The rate, and the standard error of a ratio of sums over independent sessions."""
    hits = iter(unlimited_hits(trace.sessions))
    sums = []
    for session in trace.sessions:
        own = [next(hits) for _ in range(session.calls)]
        sums.append((sum(hit.total for hit in own), sum(hit.prompt for hit in own)))
    prompts = sum(prompt for _, prompt in sums)
    rate = sum(total for total, _ in sums) / prompts
    return rate, sqrt(sum((total - rate * prompt) ** 2 for total, prompt in sums)) / prompts


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize(
    ("make", "published"),
    [(putnam_like, putnam.HIT_RATE.value), (osworld_like, osworld.HIT_RATE.value)],
)
def test_the_ideal_hit_rate_is_the_published_one(
    make: Callable[[int, int], Trace], published: float, seed: int
) -> None:
    rate, error = hit_rate(make(seed, 1_000))
    assert abs(rate - published) <= ROUNDED + 4 * error
    assert error < 0.002


def test_putnam_is_decode_heavy_and_of_one_branch() -> None:
    trace = putnam_like()
    check(trace, Path("putnam"))
    found = statistics(trace)
    assert found.branches == found.sessions * putnam.BRANCHES.value == putnam.DEFAULT
    assert found.reuse.rewrites == 0
    assert found.uncached_output < 0.25


def test_osworld_is_prefill_heavy_with_a_screenshot_at_every_step() -> None:
    trace = osworld_like()
    check(trace, Path("osworld"))
    found = statistics(trace)
    assert found.sessions == osworld.DEFAULT
    assert found.uncached_output > 4
    for session in trace.sessions:
        for branch in session.branches:
            for call in branch.calls:
                assert call.added[-1].length == osworld.SCREENSHOT.value + osworld.TEXT.value


def test_osworld_sub_agents_are_waited_for_and_heard() -> None:
    sessions = [session for session in osworld_like().sessions if len(session.branches) > 1]
    share = len(sessions) / osworld.DEFAULT
    assert abs(share - osworld.SUB_AGENTS.value) < 4 * sqrt(0.25 / osworld.DEFAULT)
    assert {len(session.branches) for session in sessions} == {2, 3, 4}
    for session in sessions:
        main, *helpers = session.branches
        [joining] = [call for call in main.calls if call.wait is Wait.BRANCH]
        assert joining.joins == tuple(helper.name for helper in helpers)
        assert {helper.spawned_by for helper in helpers} == {main.calls.index(joining) - 1}
        for helper, heard in zip(helpers, joining.added, strict=False):
            last = len(helper.calls) - 1
            assert heard == Span(reply_stream(helper.name, last), 0, helper.calls[-1].output)
            assert helper.calls[0].added[0] == helpers[0].calls[0].added[0]
            assert helper.calls[0].kept == 0


def recorded() -> Trace:
    shared, local = stream_id("system"), stream_id("input", local=True)
    sessions = []
    for number in range(4):
        first = Call(30, 5, 0, (Span(shared, 0, 20), Span(local, 0, 10)), wait=Wait.START)
        joining = Call(50, 5, 35, (Span(local, 10, 15),), 2.0, Wait.BRANCH, ("sub",))
        sub = Call(20 + number, 5, 0, (Span(local, 99, 20 + number),), 0.1)
        branches = (Branch(MAIN, (first, joining)), Branch("sub", (sub,), MAIN, 0, "small"))
        sessions.append(Session(f"r{number}", branches, "big", "agent", 3.5 * number))
    return Trace("recorded", tuple(sessions))


def test_coding_draws_whole_sessions_again() -> None:
    source = recorded()
    check(source, Path("recorded"))
    trace = coding_of(source, 1, 40)
    check(trace, Path("coding"))
    assert len(trace.sessions) == 40
    known = {session.id: session for session in source.sessions}
    drawn = [session.id.rsplit("-", 1)[1] for session in trace.sessions]
    assert set(drawn) == set(known)
    for session, name in zip(trace.sessions, drawn, strict=True):
        assert session.branches == known[name].branches
        assert (session.model, session.agent, session.start) == ("big", "agent", None)


def test_coding_shares_between_sessions_only_what_was_shared() -> None:
    trace = coding_of(recorded(), 1, 40)
    by_name = groupby(
        sorted(trace.sessions, key=lambda s: s.id.rsplit("-", 1)[1]),
        key=lambda s: s.id.rsplit("-", 1)[1],
    )
    for _, group in by_name:
        one, other = list(group)[:2]
        system, own = one.branches[0].calls[0].added
        contents = [Content(session.id, Vocabulary()) for session in (one, other)]
        assert len({content.span(system).tobytes() for content in contents}) == 1
        assert len({content.span(own).tobytes() for content in contents}) == 2
    assert statistics(trace).cache.shared > 0


def test_coding_on_other_models() -> None:
    trace = coding_of(recorded(), 1, 3, ("a", "b"))
    assert [session.model for session in trace.sessions] == ["a", "b", "a"]
    assert set(statistics(trace).models) == {"a", "b"}


def test_coding_draws_as_many_as_were_recorded() -> None:
    assert len(coding_of(recorded()).sessions) == 4
    with pytest.raises(ValueError, match="no session was recorded"):
        coding_of(Trace("empty", ()))


@pytest.mark.skipif(not RECORDED.is_file(), reason="the shared traces are not beside the checkout")
def test_real_sessions_have_the_published_hit_rate_of_others() -> None:
    rate, error = hit_rate(load([RECORDED]))
    assert abs(rate - coding.HIT_RATE.value) <= ROUNDED + 4 * error
    assert error < 0.005
