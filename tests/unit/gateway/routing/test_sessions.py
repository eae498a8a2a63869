"""Cases of the session table that have names."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest

from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source
from alipes.gateway.routing.sessions import (
    KEPT_BYTES,
    SESSION_BRANCHES,
    SessionCall,
    SessionTable,
)
from alipes.gateway.routing.views import SECOND
from alipes.instance.contract import BLOCK_TOKENS, TokenIds

LEAD = 3
ASSISTANT = [7, 8, 9]
SYSTEM = list(range(100, 300))


def ids(tokens: list[int]) -> TokenIds:
    return np.array(tokens, np.int32)


class Table:
    """A table with short ways to call it; time passes by itself."""

    def __init__(
        self,
        limit: int = 100,
        idle: float = 60.0,
        kept: int = KEPT_BYTES,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.table = SessionTable(limit, idle, Random(3).randbytes, kept, block_tokens)
        self.now = 0

    def begin(
        self,
        tokens: list[int],
        claim: Claim = NO_CLAIM,
        tenant: str = "t",
        model: str = "m",
        lead: int = LEAD,
    ) -> SessionCall:
        self.now += 1
        prompt = ids(tokens + ASSISTANT[:lead])
        return self.table.begin(tenant, model, claim, prompt, len(tokens), self.now)

    def end(self, call: SessionCall, reply: list[int] | None = None) -> None:
        self.now += 1
        self.table.finished(call, "i", ids(reply or []), 64, 128, self.now)

    def turn(self, tokens: list[int], reply: list[int], claim: Claim = NO_CLAIM) -> SessionCall:
        call = self.begin(tokens, claim)
        self.end(call, reply)
        return call


@pytest.mark.parametrize("size", [1, 20, 61, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("block_tokens", [16, 64, 256])
def test_a_growing_history_is_one_session(size: int, block_tokens: int) -> None:
    table = Table(block_tokens=block_tokens)
    history, first = list(range(size)), ""
    for turn in range(5):
        call = table.begin(history)
        first = first or call.session
        assert call.session == first
        assert call.continuation is (turn > 0)
        assert call.known_tokens == (turn and len(history) - 1)
        assert len(call.path.keys("f")) == (len(history) + LEAD) // block_tokens
        reply = [500 + turn, 501]
        table.end(call, reply)
        history = history + ASSISTANT + reply + [600 + turn]
    assert table.table.branches == 1


def test_a_template_may_write_the_reply_in_another_way() -> None:
    """What it puts before a reply is no part of the beginning that counts."""
    table = Table()
    first = table.turn([1, 2], [50, 51])
    again = table.begin([1, 2, 40, 50, 51, 3])
    assert (again.session, again.known_tokens) == (first.session, 2)


def test_equal_prompts_are_different_sessions() -> None:
    table = Table()
    calls = [table.begin([1, 2]) for _ in range(3)]
    for call in calls:
        table.end(call, [5])
    calls.append(table.begin([1, 2]))
    assert len({call.session for call in calls}) == 4


@pytest.mark.parametrize("kept", [0, KEPT_BYTES])
def test_runs_of_one_task_go_on_with_their_own_replies(kept: int) -> None:
    """Equal prompts at once, as of an agent that is run several times and tells no session."""
    table = Table(kept=kept)
    calls = [table.begin(SYSTEM) for _ in range(4)]
    for number, call in enumerate(calls):
        table.end(call, [1000 + number, 1001, 2])
    for number, call in enumerate(calls):
        again = table.begin([*SYSTEM, *ASSISTANT, 1000 + number, 1001, 3, 4])
        assert again.session == call.session
        table.end(again, [5])


def test_a_shared_system_prompt_makes_no_session() -> None:
    table = Table()
    first = table.turn([*SYSTEM, 1], [5])
    assert table.begin([*SYSTEM, 2]).session != first.session
    assert table.begin([*SYSTEM, 2, 1]).session != first.session
    assert table.begin([*SYSTEM, 1, 2]).session == first.session


def test_a_prompt_that_tells_nothing_begins_no_other() -> None:
    table = Table()
    prompt = ids(SYSTEM)
    call = table.table.begin("t", "m", NO_CLAIM, prompt, 0, 0)
    table.end(call)
    assert table.begin([*SYSTEM, 1]).session != call.session


def test_tenants_and_models_are_apart() -> None:
    table = Table()
    first = table.turn([1, 2], [5])
    assert table.begin([1, 2, 3], tenant="u").session != first.session
    assert table.begin([1, 2, 3], model="n").session != first.session
    claim = Claim("mine", source=Source.OWN)
    same = [table.begin([1], claim, tenant=tenant) for tenant in ("t", "u")]
    assert same[0].session == same[1].session == "mine"
    assert same[0].branch != same[1].branch
    assert table.table.view("v", "mine", table.now) is None


def test_an_idle_session_goes_before_a_busy_one() -> None:
    table = Table()
    calls = [table.begin([1, 2]) for _ in range(2)]
    for call in calls:
        table.end(call, [5])
    newest = table.begin([1, 2, 3])
    assert newest.session == calls[1].session
    assert table.begin([1, 2, 3]).session == calls[0].session
    assert table.begin([1, 2, 4]).session in {call.session for call in calls}


def test_the_longest_beginning_wins() -> None:
    table = Table()
    short = table.turn([1, 2], [5])
    long = table.begin([1, 2, 3], Claim("other", source=Source.OWN))
    table.end(long, [5])
    assert table.begin([1, 2, 3, 4]).session == "other"
    assert table.begin([1, 2, 9]).session == short.session


def test_an_id_of_each_request_parts_no_session() -> None:
    table = Table()
    sessions = set()
    history = [1]
    for turn in range(4):
        claim = Claim(f"trace-{turn}", source=Source.AGENT, weak=True)
        sessions.add(table.turn(history, [5], claim).session)
        history = [*history, 5, turn]
    assert sessions == {"trace-0"}
    assert table.begin([9], Claim("trace-0", weak=True)).session == "trace-0"


def test_ids_made_here_are_long_and_unlike() -> None:
    table = Table()
    made = {table.begin([n]).session for n in range(50)}
    assert len(made) == 50
    assert all(len(name) == len("auto-") + 32 for name in made)


def test_calls_that_overlap_are_branches_of_their_own() -> None:
    table, claim = Table(), Claim("s", "agent", source=Source.OWN)
    table.turn([1, 2, 3], [5], claim)
    main = table.begin([1, 2, 3, *ASSISTANT, 5, 6], claim)
    title = table.begin([40, 41], claim)
    fork = table.begin([1, 2, 3, *ASSISTANT, 5, 7], claim)
    assert len({main.branch, title.branch, fork.branch}) == 3
    assert (main.continuation, main.known_tokens) == (True, 7)
    assert (title.continuation, title.known_tokens) == (False, 0)
    assert (fork.continuation, fork.known_tokens) == (True, 7)
    for call in (fork, title, main):
        table.end(call, [5])
    assert table.begin([40, 41, 1], claim).branch == title.branch
    assert table.begin([1, 2, 3, *ASSISTANT, 5, 7, 8], claim).branch == fork.branch


def test_a_rewritten_history_stays_on_its_branch() -> None:
    table, claim = Table(), Claim("s", source=Source.OWN)
    first = table.turn([1, 2, 3], [5], claim)
    compacted = table.begin([1, 9], claim)
    assert compacted.branch == first.branch
    assert (compacted.continuation, compacted.known_tokens) == (True, 0)
    table.end(compacted, [5])
    back = table.begin([1, 2, 3, *ASSISTANT, 5, 6], claim)
    assert (back.branch, back.known_tokens) == (first.branch, 7)


def test_a_branch_begins_with_what_its_parent_had() -> None:
    table = Table()
    table.turn([1, 2, 3], [5], Claim("s", source=Source.OWN))
    fork = Claim("s", "fork", "", source=Source.OWN)
    child = table.begin([1, 2, 3, *ASSISTANT, 5, 6], fork)
    assert (child.continuation, child.known_tokens) == (True, 7)
    stranger = table.begin([1, 2, 3, 4], Claim("s", "x", "no-such", source=Source.OWN))
    assert (stranger.continuation, stranger.known_tokens) == (False, 0)


def test_what_is_kept_of_the_context_is_known_to_the_token() -> None:
    table = Table()
    named = Claim("s", source=Source.OWN)
    first = table.turn(SYSTEM, [1, 2, 3], named)
    assert (first.kept_tokens, first.number, first.origin) == (0, 0, b"")
    context = SYSTEM + ASSISTANT + [1, 2, 3]
    appended = table.turn([*context, 40], [4, 5], named)
    assert (appended.kept_tokens, appended.number) == (len(context), 1)
    compacted = table.turn([*context[:150], 41], [6], named)
    assert (compacted.kept_tokens, compacted.known_tokens, compacted.number) == (150, 0, 2)
    sub = table.turn([*SYSTEM[:90], 42], [7], Claim("s", "sub", source=Source.OWN))
    assert (sub.kept_tokens, sub.number) == (90, 0)
    assert (sub.origin, sub.origin_calls) == (first.branch, 3)
    again = table.turn(
        [*SYSTEM[:90], 42, *ASSISTANT, 7, 43], [8], Claim("s", "sub", source=Source.OWN)
    )
    assert (again.kept_tokens, again.number, again.origin) == (95, 1, b"")


def test_of_a_context_that_is_not_held_less_is_known() -> None:
    table = Table(kept=1)
    named = Claim("s", source=Source.OWN)
    table.turn(SYSTEM, [1, 2, 3], named)
    context = SYSTEM + ASSISTANT + [1, 2, 3]
    assert table.turn([*context, 40], [4], named).kept_tokens == len(SYSTEM)
    assert table.turn([*context[:150], 41], [6], named).kept_tokens == 0


def test_the_last_call_ends_the_session() -> None:
    table = Table()
    table.turn([1], [5], Claim("s", source=Source.OWN))
    last = table.begin([1, 2], Claim("s", final=True, source=Source.OWN))
    other = table.begin([9], Claim("s", "side", source=Source.OWN))
    assert last.final
    table.end(last)
    assert table.table.gone(table.now) == ()
    table.end(other)
    assert set(table.table.gone(table.now)) == {last.branch, other.branch}
    assert table.table.view("t", "s", table.now) is None


def test_a_last_call_that_came_to_nothing_is_made_again() -> None:
    table = Table()
    first = table.turn([1], [5], Claim("s", source=Source.OWN))
    for _ in range(2):
        last = table.begin([1, 2], Claim("s", final=True, source=Source.OWN))
        assert (last.branch, last.known_tokens) == (first.branch, 1)
        table.table.failed(last, table.now)
    assert table.table.gone(table.now) == ()


def test_a_call_that_came_to_nothing_leaves_nothing() -> None:
    table = Table()
    call = table.begin([1, 2])
    table.table.failed(call, table.now)
    table.end(call, [5])
    assert table.table.gone(table.now) == (call.branch,)
    assert (len(table.table), table.table.kept_cost) == (0, 0)


def test_idle_sessions_go_and_busy_ones_stay() -> None:
    table = Table(idle=10)
    old = table.turn([1], [5])
    busy = table.begin([2])
    later = table.now + 11 * SECOND
    assert table.table.view("t", old.session, later) is None
    assert table.table.gone(later) == (old.branch,)
    assert table.table.view("t", busy.session, later) is not None
    table.now = later
    assert table.begin([1, 2]).session != old.session


def test_the_tenant_with_most_sessions_makes_room() -> None:
    table = Table(limit=4)
    mine = table.begin([1], tenant="small")
    table.end(mine)
    many = [table.begin([n], tenant="big") for n in range(2, 9)]
    for call in many:
        table.end(call)
    assert table.table.gone(table.now) == tuple(call.branch for call in many[:4])
    assert table.table.view("small", mine.session, table.now) is not None


def test_ids_of_branches_that_are_new_each_time_are_bounded() -> None:
    table = Table(limit=1000)
    for n in range(SESSION_BRANCHES + 5):
        table.turn([n], [5], Claim("s", f"branch-{n}", source=Source.OWN))
    view = table.table.view("t", "s", table.now)
    assert view is not None
    assert len(view.branches) == SESSION_BRANCHES
    assert len(table.table.gone(table.now)) == 5


def test_without_its_path_a_prompt_is_still_found_to_the_token() -> None:
    table = Table(kept=0)
    for size in (5, 64, 130):
        history = [size, *range(size)]
        first = table.turn(history, [5])
        assert table.table.kept_cost == 0
        changed = [*history[:-1], 999, 1]
        assert table.begin(changed).session != first.session
        again = table.begin([*history, *ASSISTANT, 5, 6])
        assert (again.session, again.known_tokens) == (first.session, len(history))


def test_paths_are_kept_within_bytes_the_latest_first() -> None:
    table = Table(kept=3000)
    first = table.turn(list(range(500)), [5])
    second = table.turn([1, *range(500)], [5])
    assert 0 < table.table.kept_cost <= 3000
    for call, history, lead in ((first, [], 0), (second, [1], 4)):
        again = table.begin([*history, *range(500), *ASSISTANT, 5, 6])
        assert again.session == call.session
        assert again.known_tokens == 500 + len(history) + (4 if lead else 0)


def test_a_view_tells_what_is_known() -> None:
    table = Table()
    claim = Claim("s", "b", "p", source=Source.AGENT)
    table.turn([1, 2], [5], claim)
    table.begin([1, 2, 3], claim)
    view = table.table.view("t", "s", table.now + 2 * SECOND)
    assert view is not None
    assert (view.source, view.calls, view.in_flight, view.idle) == (Source.AGENT, 2, 1, 2.0)
    (branch,) = view.branches
    assert (branch.branch, branch.parent, branch.model, branch.instance) == ("b", "p", "m", "i")
    assert (branch.cached_tokens, branch.prefix_tokens) == (64, 128)
    assert (branch.calls, branch.in_flight, branch.idle) == (2, 1, 2.0)


def test_20000_short_sessions_leave_memory_flat() -> None:
    table = Table(limit=500)

    def serve(first: int, last: int) -> int:
        for n in range(first, last):
            claim = Claim(f"session-{n}", source=Source.OWN) if n % 2 else NO_CLAIM
            table.turn([n, *range(80)], [5, 6], claim)
            table.table.gone(table.now)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = serve(0, 2000)
        assert serve(2000, 20_000) < before + 200_000
    finally:
        tracemalloc.stop()
    assert table.table.branches == len(table.table) == 500
