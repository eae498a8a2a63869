"""Prompts of token ids: the same, however they are put together."""

from __future__ import annotations

import numpy as np

from alipes.replay.tokens import TokenPrompts, prompt_spans, vocabulary
from alipes.replay.traces.content import Content, TokenIds, Vocabulary, contexts
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span

FIRST = Call(10, 5, 0, (Span(1, 0, 10),))


def sub(name: str, parent: str, kept: int, spawned_by: int = 0) -> Branch:
    later = Call(kept + 3, 2, kept, (Span(-2, 0, 3),)), Call(4, 1, 2, (Span(-3, 0, 2),))
    return Branch(name, later, parent, spawned_by)


def test_prompts_are_those_that_grow_call_by_call() -> None:
    """After compactions too, and in branches of branches, on replies and before them."""
    main = Branch(
        MAIN, (FIRST, Call(18, 4, 15, (Span(-1, 0, 3),)), Call(9, 1, 7, (Span(2, 5, 2),)))
    )
    session = Session("s", (main, sub("a", MAIN, 13, 0), sub("b", "a", 17), sub("c", "b", 0, 1)))
    content = Content("s", Vocabulary())
    prompts, known = TokenPrompts(session, content), dict[str, list[TokenIds]]()
    for number, branch in enumerate(session.branches):
        known[branch.name] = []
        for index, (prompt, reply) in enumerate(contexts(session, branch, content, known)):
            assert prompts.prompt(number, index).tolist() == prompt.tolist()
            known[branch.name].append(np.concatenate((prompt, reply)))


def test_sub_agents_may_have_sub_agents_without_end() -> None:
    deep = tuple(sub(f"{n + 1}", f"{n}" if n else MAIN, 1) for n in range(2_000))
    session = Session("s", (Branch(MAIN, (FIRST,)), *deep))
    assert prompt_spans(session, 2_000, 0) == [Span(1, 0, 1), Span(-2, 0, 3)]


def test_another_vocabulary_finds_no_cache_of_the_same_trace() -> None:
    """The remedy for caches that an earlier replay has warmed."""
    session = Session("s", (Branch(MAIN, (Call(4_000, 5, 0, (Span(1, 0, 4_000),)),)),))
    one, other = (
        TokenPrompts(session, Content("s", vocabulary(bound))).prompt(0, 0)
        for bound in (30_000, 29_999)
    )
    assert len(one) == len(other)
    # No block of 16 tokens, wherever it begins, is the same.
    same = np.convolve(one == other, np.ones(16), "valid")
    assert same.max() < 16
    assert (one == other).mean() < 0.01
