import json
from pathlib import Path

from alipes.replay.plan import Session, assign, plan_session
from alipes.replay.shorten import texts_of
from alipes.replay.traces.model import Call, Message, Trajectory
from alipes.replay.traces.read import read

SHIPPED = Path(__file__).parents[3] / "replay" / "data" / "marshmallow-1867-xml.traj"


def plan(trajectory: Trajectory, gap_cap: float = 10.0, model: str = "m") -> Session:
    (assignment,) = assign([trajectory], [model], 1)
    counts = {text: len(text.split()) for text in texts_of(trajectory)}
    return plan_session(assignment, trajectory, 1.0, counts, gap_cap)


def tiny(*gaps: float) -> Trajectory:
    task = Message("user", "go")
    calls = tuple(Call((task,), Message("assistant", "one two"), gap) for gap in gaps)
    return Trajectory("tiny-00", Path("tiny.traj"), calls)


def test_every_run_sends_the_same_bytes() -> None:
    first, second = plan(read(SHIPPED)), plan(read(SHIPPED))
    places = range(len(first.calls))
    assert [first.body(i) for i in places] == [second.body(i) for i in places]
    assert [first.headers(i) for i in places] == [second.headers(i) for i in places]
    assert first.calls == second.calls


def test_a_body_asks_for_the_recorded_length_and_nothing_random() -> None:
    trajectory = read(SHIPPED)
    session = plan(trajectory, model="qwen3/small")
    body = json.loads(session.body(3))
    recorded = trajectory.calls[3]
    assert body["max_tokens"] == len(recorded.reply.content.split())
    assert body["messages"] == [message.wire() for message in recorded.prompt]
    assert body["messages"][-2]["content"] == trajectory.calls[2].reply.content
    assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0, True)
    assert isinstance(body["seed"], int)
    assert body["model"] == "qwen3/small"


def test_ids_are_stable_and_the_last_call_says_so() -> None:
    session = plan(read(SHIPPED), model="qwen3/small")
    assert session.headers(0) == {
        "x-session-id": "marshmallow-1867-xml-a56c8447.qwen3-small.0",
        "x-request-id": "marshmallow-1867-xml-a56c8447.qwen3-small.0.0",
    }
    assert session.headers(10)["x-session-final"] == "true"


def test_gaps_are_capped_and_an_empty_reply_still_draws_a_token() -> None:
    assert [call.gap for call in plan(tiny(0.0, 2.5, 99.0)).calls] == [0, 2_500_000_000, 10**10]
    call = Call((Message("user", "go"),), Message("assistant", ""), 0.0)
    assert plan(Trajectory("t", Path("t"), (call,))).calls[0].max_tokens == 1


def test_sessions_take_the_files_in_turn_on_every_model() -> None:
    files = [tiny(0.0), read(SHIPPED)]
    sessions = assign(files, ["a", "b"], 3)
    assert len({session.session for session in sessions}) == 6
    assert [(s.trajectory.name, s.model) for s in sessions] == [
        (file.name, model) for file in (files[0], files[1], files[0]) for model in ("a", "b")
    ]
