"""The statistics of a trace against slow, obvious computations over every token."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.replay.traces.check import check
from alipes.replay.traces.form import Branch, Call, Session, Span, Trace, Wait, reply_stream
from alipes.replay.traces.statistics import spread, statistics

Token = tuple[object, ...]
MODELS = ("", "a", "b")


@st.composite
def spans(draw: st.DrawFn) -> tuple[Span, ...]:
    one = st.builds(Span, st.integers(-2, 1), st.integers(0, 2), st.integers(1, 4))
    return tuple(draw(st.lists(one, max_size=3)))


@st.composite
def branches(draw: st.DrawFn, name: str, earlier: tuple[Branch, ...]) -> Branch:
    """A branch whose calls keep some of what came before."""
    parent, spawned_by, context, before = "", -1, 0, 0
    if earlier:
        above = draw(st.sampled_from(earlier))
        parent, spawned_by = above.name, draw(st.integers(0, len(above.calls) - 1))
        context = above.calls[spawned_by].prompt + above.calls[spawned_by].output
    calls = []
    for index in range(draw(st.integers(1, 4))):
        kept = draw(st.sampled_from(sorted({0, context // 3, before, context})))
        added = draw(spans())
        if not kept and not added:
            added = (Span(0, 0, 3),)
        prompt = kept + sum(span.length for span in added)
        gap = draw(st.sampled_from((0.0, 0.25, 3.0, 20.0)))
        wait = draw(st.sampled_from((Wait.TOOL, Wait.USER))) if index else Wait.START
        output = draw(st.integers(1, 5))
        calls.append(Call(prompt, output, kept, added, gap, wait))
        context, before = prompt + output, prompt
    return Branch(name, tuple(calls), parent, spawned_by, draw(st.sampled_from(MODELS)))


@st.composite
def sessions(draw: st.DrawFn, name: str) -> Session:
    made: tuple[Branch, ...] = ()
    for number in range(draw(st.integers(1, 4))):
        made += (draw(branches(f"b{number}" if number else "main", made)),)
    return Session(name, joined(made), model=draw(st.sampled_from(MODELS)))


def joined(made: tuple[Branch, ...]) -> tuple[Branch, ...]:
    """The call after one that spawned branches of its own waits for all of them."""
    result = []
    for branch in made:
        calls = list(branch.calls)
        for index in range(1, len(calls)):
            names = tuple(
                other.name
                for other in made
                if other.parent == branch.name and other.spawned_by == index - 1
            )
            if names:
                old = calls[index]
                calls[index] = Call(
                    old.prompt, old.output, old.kept, old.added, old.gap, Wait.BRANCH, names
                )
        result.append(
            Branch(branch.name, tuple(calls), branch.parent, branch.spawned_by, branch.model)
        )
    return tuple(result)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 3))
    trace = Trace("drawn", tuple(draw(sessions(f"s{i}")) for i in range(count)))
    check(trace, Path("drawn"))
    return trace


def rounds(session: Session) -> list[list[tuple[Branch, int]]]:
    """Calls by the step in which they run, each as soon as what it waits for is over."""
    done: Counter[str] = Counter()
    result: list[list[tuple[Branch, int]]] = []
    lengths = {branch.name: len(branch.calls) for branch in session.branches}
    while sum(done.values()) < session.calls:
        now = []
        for branch in session.branches:
            index = done[branch.name]
            if index == lengths[branch.name]:
                continue
            if not index and branch.parent and done[branch.parent] <= branch.spawned_by:
                continue
            if any(done[name] < lengths[name] for name in branch.calls[index].joins):
                continue
            now.append((branch, index))
        done.update(branch.name for branch, _ in now)
        result.append(now)
    return result


def tokens(session: Session, span: Span) -> list[Token]:
    whose = "" if span.stream >= 0 else session.id
    return [(whose, span.stream, span.start + i) for i in range(span.length)]


def slow_hits(trace: Trace) -> tuple[int, int]:
    """(prompt tokens whose whole prefix some call of the model had computed, those of them that
    are no part of what was kept and that another session computed first)"""
    first: dict[tuple[str, tuple[Token, ...]], str] = {}
    total = shared = 0
    for session in trace.sessions:
        contexts: dict[tuple[str, int], list[Token]] = {}
        models = {branch.name: branch.model or session.model for branch in session.branches}
        for branch, index in (place for now in rounds(session) for place in now):
            call = branch.calls[index]
            before = (branch.name, index - 1) if index else (branch.parent, branch.spawned_by)
            same = not branch.parent or index or models[branch.parent] == models[branch.name]
            prompt = contexts.get(before, [])[: call.kept]
            for span in call.added:
                prompt += tokens(session, span)
            assert len(prompt) == call.prompt
            reply = tokens(session, Span(reply_stream(branch.name, index), 0, call.output))
            for length in range(1, call.prompt + call.output + 1):
                prefix = (models[branch.name], tuple((prompt + reply)[:length]))
                if length <= call.prompt and prefix in first:
                    total += 1
                    kept = length <= call.kept and same
                    shared += not kept and first[prefix] != session.id
                first.setdefault(prefix, session.id)
            contexts[branch.name, index] = prompt + reply
    return total, shared


@settings(max_examples=80, deadline=None)
@given(traces())
def test_hits_of_an_unlimited_cache(trace: Trace) -> None:
    total, shared = slow_hits(trace)
    prompts = sum(c.prompt for s in trace.sessions for b in s.branches for c in b.calls)
    outputs = sum(c.output for s in trace.sessions for b in s.branches for c in b.calls)
    found = statistics(trace)
    assert found.cache.hit_rate == float(Fraction(total, prompts))
    assert found.cache.shared == float(Fraction(shared, prompts))
    assert found.uncached == float(Fraction(prompts - total, found.calls))
    assert found.uncached_output == float(Fraction(prompts - total, outputs))
    assert found.input_output == float(Fraction(prompts, outputs))
    assert (found.prompt_tokens, found.output_tokens) == (prompts, outputs)


@settings(max_examples=80, deadline=None)
@given(traces())
def test_active_branches(trace: Trace) -> None:
    most = busy = steps = 0
    for session in trace.sessions:
        ran = rounds(session)
        for step in range(len(ran)):
            begun = {branch.name for now in ran[: step + 1] for branch, _ in now}
            left = {branch.name for now in ran[step:] for branch, _ in now}
            most = max(most, len(begun & left))
            busy += len(begun & left)
            steps += 1
    found = statistics(trace)
    assert found.active_branches_max == most
    assert found.active_branches_mean == float(Fraction(busy, steps))


@settings(max_examples=80, deadline=None)
@given(traces(), st.sampled_from((0.0, 1.0, 10.0)))
def test_counts_gaps_and_reuse(trace: Trace, cap: float) -> None:
    found = statistics(trace, cap)
    every = [(s, b, i) for s in trace.sessions for b in s.branches for i in range(len(b.calls))]
    later = [(b.calls[i - 1], b.calls[i]) for _, b, i in every if i]
    waited = [b.calls[i] for _, b, i in every if i or b.parent]
    assert found.calls == len(every)
    assert found.branches == len({(s.id, b.name) for s, b, _ in every})
    assert found.models == Counter(b.model or s.model for s, b, _ in every)
    assert found.sub_agent_calls == float(
        Fraction(sum(bool(b.parent) for _, b, _ in every), len(every))
    )
    assert found.depth.max == max(Counter(s.id for s, _, _ in every).values())
    assert found.pause == pytest.approx(sum(call.gap for call in waited) / len(every))
    assert {wait: gaps.seconds.count for wait, gaps in found.gaps.items()} == Counter(
        call.wait.value for call in waited
    )
    for wait, gaps in found.gaps.items():
        of = [call.gap for call in waited if call.wait == wait]
        assert gaps.seconds == spread(of)
        assert gaps.above_cap == float(Fraction(len([gap for gap in of if gap > cap]), len(of)))
    assert found.reuse.continuations == len(later)
    over = [call for before, call in later if call.kept > before.prompt / 2]
    assert found.reuse.over_half == (float(Fraction(len(over), len(later))) if later else 0)
    assert found.reuse.rewrites == sum(call.kept < before.prompt for before, call in later)
    whole = [call for before, call in later if call.kept >= before.prompt]
    for wait, share in found.reuse.kept_after.items():
        shares = [call.kept / call.prompt for call in whole if call.wait == wait]
        assert share == pytest.approx(sum(shares) / len(shares))
    cut = [call.kept / call.prompt for before, call in later if call.kept < before.prompt]
    assert found.reuse.kept_by_rewrites == pytest.approx(sum(cut) / len(cut) if cut else 0)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_spread_is_nearest_rank(values: list[int]) -> None:
    found = spread(values)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        enough = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
        assert value == min(enough)
    assert found.max == max(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(sum(values) / len(values))


def test_a_trace_of_nothing_has_no_figures() -> None:
    found = statistics(Trace("empty", ()))
    assert (found.sessions, found.calls, found.cache.hit_rate) == (0, 0, 0)
    assert found.prompt == spread(())


def test_what_another_model_computed_is_no_hit_but_the_same_content() -> None:
    """The parent's context lies in the middle of a run of its model's cache."""
    whole = Call(6, 1, 0, (Span(0, 0, 6),), wait=Wait.START)
    parts = Call(4, 1, 0, (Span(0, 0, 2), Span(0, 2, 2)), wait=Wait.START)
    child = Call(5, 1, 4, (Span(0, 4, 1),))
    first = Session("one", (Branch("main", (whole,)),), model="a")
    known = Session("two", (Branch("main", (whole,)),), model="b")
    spawning = (Branch("main", (parts,)), Branch("sub", (child,), "main", 0, "b"))
    trace = Trace("made", (first, known, Session("three", spawning, "a")))
    # Of 21 prompt tokens, 4 and 5 of the last session were computed by the others.
    assert slow_hits(trace) == (9, 9)
    assert statistics(trace).cache.hit_rate == float(Fraction(9, 21))
    assert statistics(trace).cache.shared == float(Fraction(9, 21))
