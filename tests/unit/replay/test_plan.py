import json
from pathlib import Path

import pytest

from alipes.replay.conversation import conversation_of
from alipes.replay.plan import PlanError, PlannedCall, PlannedSession, TextPrompts, assign
from alipes.replay.shorten import text_of
from alipes.replay.tokens import TokenPrompts, vocabulary
from alipes.replay.traces.content import Content
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Wait
from alipes.replay.traces.load import load
from alipes.replay.traces.swe_agent import read_calls

SHIPPED = Path(__file__).parents[3] / "replay" / "data" / "marshmallow-1867-xml.traj"
RECORDED = load([SHIPPED]).sessions[0]
COUNTED = 11


def plan(recorded: Session, model: str = "m", plain: bool = False) -> PlannedSession:
    (assignment,) = assign([recorded], [model])
    calls = tuple(
        tuple(PlannedCall(one.prompt, len(text_of(one.reply).split())) for one in branch)
        for branch in conversation_of(recorded)
    )
    return PlannedSession(
        assignment.session, assignment.models, recorded, TextPrompts(calls), plain=plain
    )


def branching() -> Session:
    """Main spawns a, and a spawns b; each keeps what it began with."""
    first = Call(8, 3, added=(Span(5, 0, 8),), wait=Wait.START)
    main = (first, Call(15, 2, 11, (Span(-9, 0, 4),)), Call(9, 1, 6, (Span(-9, 4, 3),)))
    a = Branch("a", (Call(12, 2, 11, (Span(7, 0, 1),)),), MAIN, 0)
    b = Branch("b 2", (Call(16, 2, 14, (Span(7, 1, 2),)),), "a", 0, model="other")
    return Session("s/1", (Branch(MAIN, main), a, b), model="m")


def tokens(force: bool = False) -> PlannedSession:
    (assignment,) = assign([branching()], [])
    content = Content(assignment.session, vocabulary(2_000))
    prompts = TokenPrompts(assignment.recorded, content, force)
    return PlannedSession(assignment.session, assignment.models, assignment.recorded, prompts)


def test_every_run_sends_the_same_bytes() -> None:
    first, second = plan(RECORDED), plan(load([SHIPPED]).sessions[0])
    assert first.recorded == second.recorded
    for index in range(COUNTED):
        assert first.request(0, index, False) == second.request(0, index, False)


def test_a_body_asks_for_the_recorded_length_and_nothing_random() -> None:
    calls = read_calls(SHIPPED, SHIPPED.read_bytes())
    request = plan(RECORDED, model="qwen3/small").request(0, 3, False)
    body = json.loads(request.body)
    recorded = calls[3]
    assert request.path == "/v1/chat/completions"
    assert body["max_tokens"] == request.expected == len(recorded.reply.content.split())
    assert body["messages"] == [message.wire() for message in recorded.prompt]
    assert body["messages"][-2]["content"] == calls[2].reply.content
    assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0, True)
    assert isinstance(body["seed"], int)
    assert body["model"] == "qwen3/small"
    plain = json.loads(plan(RECORDED, "qwen3/small", plain=True).request(0, 3, False).body)
    assert {name for name in body if name not in plain} == {"ignore_eos"}


def test_ids_are_stable_and_the_last_call_says_so() -> None:
    session = plan(RECORDED, model="qwen3/small")
    assert session.request(0, 0, False).headers == {
        "x-session-id": "marshmallow-1867-xml-a56c8447.qwen3-small.0",
        "x-request-id": "marshmallow-1867-xml-a56c8447.qwen3-small.0.0",
    }
    assert session.request(0, 10, True).headers["x-session-final"] == "true"


def test_sessions_without_a_model_are_taken_in_turn_on_every_model() -> None:
    files = [Session("a", (Branch(MAIN, (Call(1, 1),)),)), RECORDED]
    sessions = assign(files, ["x", "y"], 3)
    assert len({session.session for session in sessions}) == 6
    assert [(s.recorded.id, s.models) for s in sessions] == [
        (file.id, (model,)) for file in (files[0], files[1], files[0]) for model in ("x", "y")
    ]
    assert len(assign(files, ["x", "y"])) == 4
    with pytest.raises(PlanError, match="--models names no model, nor does session a"):
        assign(files, [])


def test_sessions_and_branches_keep_their_models_unless_renamed() -> None:
    (one,) = assign([branching()], ["x", "y"])
    assert (one.session, one.models) == ("s-1.m.0", ("m", "m", "other"))
    (one,) = assign([branching()], ["x", "y"], renamed={"m": "new", "other": "newer"})
    assert (one.session, one.models) == ("s-1.new.0", ("new", "new", "newer"))
    assert [one.session for one in assign([branching()], [], 2)] == ["s-1.m.0", "s-1.m.1"]


def test_sub_agents_are_named_as_the_gateway_reads_it() -> None:
    session = tokens()
    names = ("x-branch-id", "x-parent-branch-id")
    sent = [session.request(branch, 0, False) for branch in range(3)]
    assert [tuple(map(request.headers.get, names)) for request in sent] == [
        (None, None),
        ("a", None),
        ("b%202", "a"),
    ]
    assert [request.request_id.removeprefix("s-1.m.0.") for request in sent] == [
        "0",
        "a.0",
        "b-2.0",
    ]
    assert [request.model for request in sent] == ["m", "m", "other"]


def test_token_prompts_hold_what_was_recorded() -> None:
    session = tokens(force=True)
    sent = {
        (branch, index): session.request(branch, index, False)
        for branch, index in ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0))
    }
    assert {request.path for request in sent.values()} == {"/v1/completions"}
    bodies = {place: json.loads(request.body) for place, request in sent.items()}
    prompts = {place: body["prompt"] for place, body in bodies.items()}
    replies = {place: body["forced_token_ids"] for place, body in bodies.items()}
    assert {place: len(prompt) for place, prompt in prompts.items()} == {
        (branch, index): session.recorded.branches[branch].calls[index].prompt
        for branch, index in prompts
    }
    assert {place: len(reply) for place, reply in replies.items()} == {
        place: request.expected for place, request in sent.items()
    }
    after_first = prompts[0, 0] + replies[0, 0]
    assert prompts[0, 1][:11] == after_first
    assert prompts[0, 2][:6] == prompts[0, 1][:6]
    assert prompts[1, 0][:11] == after_first
    assert prompts[2, 0] == (prompts[1, 0] + replies[1, 0])[:14] + prompts[2, 0][14:]
    ids = [number for prompt in prompts.values() for number in prompt]
    assert min(ids) >= 1_000
    assert max(ids) < 2_000
    free = json.loads(tokens().request(0, 1, False).body)
    assert "forced_token_ids" not in free
    assert free["prompt"] == prompts[0, 1]


def test_copies_share_what_sessions_share_and_nothing_else() -> None:
    one, other = (
        TokenPrompts(branching(), Content(name, vocabulary(2_000))).prompt(0, 1).tolist()
        for name in ("s.m.0", "s.m.1")
    )
    assert one[:8] == other[:8]
    assert one[8:] != other[8:]


def test_a_small_vocabulary_leaves_its_lower_half_out() -> None:
    assert vocabulary(100).low == 50
