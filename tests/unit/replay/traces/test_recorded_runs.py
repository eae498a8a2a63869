import json
from itertools import pairwise
from pathlib import Path

import pytest

from alipes.replay.traces import mini_swe_agent, swe_agent
from alipes.replay.traces.model import Call, Message, TraceError

REPOSITORY = Path(__file__).parents[4]
SHIPPED = REPOSITORY / "replay" / "data" / "marshmallow-1867-xml.traj"
SHARED = REPOSITORY.parent / "shared" / "traces"
SYSTEM = {"role": "system", "content": "You fix bugs."}
TASK = {"role": "user", "content": "Fix this one."}


def write(folder: Path, value: object, name: str = "run.traj") -> Path:
    path = folder / name
    path.write_text(json.dumps(value))
    return path


def assistant(text: str, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": text, **more}


def read(path: Path) -> tuple[Call, ...]:
    format = mini_swe_agent if path.name.endswith(".traj.json") else swe_agent
    return format.read_calls(path, path.read_bytes())


def check_grows(calls: tuple[Call, ...]) -> None:
    """Each prompt begins with the previous prompt and the previous reply."""
    for before, after in pairwise(calls):
        begin = (*before.prompt, before.reply)
        assert after.prompt[: len(begin)] == begin
        assert len(after.prompt) > len(begin)


def test_the_shipped_run_is_eleven_growing_calls() -> None:
    calls = read(SHIPPED)
    assert len(calls) == 11
    assert [message.role for message in calls[0].prompt] == ["system", "user"]
    assert calls[0].reply.content.startswith("Let's first start by reproducing")
    check_grows(calls)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not beside the checkout")
@pytest.mark.parametrize(
    ("file", "calls", "gaps"),
    [
        ("swe-agent/function_calling_simple.traj", 5, 0.0),
        ("swe-agent/humanevalfix-python-0.traj", 5, 0.0),
        ("swe-agent/marshmallow-1867-default.traj", 14, 0.0),
        ("swe-agent/marshmallow-1867-function-calling.traj", 11, 4.1155),
        ("swe-agent/pydicom-1458.traj", 12, 0.0),
        ("swe-agent/test-repo-1c2844.traj", 5, 1.3642),
        ("mini-swe-agent/github_issue.traj.json", 10, 0.0),
        ("mini-swe-agent/local.traj.json", 2, 0.0),
    ],
)
def test_real_runs_are_read_whole(file: str, calls: int, gaps: float) -> None:
    recorded = read(SHARED / file)
    assert len(recorded) == calls
    assert sum(call.gap for call in recorded) == pytest.approx(gaps, abs=0.001)
    check_grows(recorded)


def test_swe_agent_tool_calls_keep_their_ids(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p":1}'}}
    answer = {
        "role": "tool",
        "content": [{"type": "text", "text": "a.py"}],
        "tool_call_ids": ["c1"],
    }
    history = [SYSTEM, TASK, assistant("look", tool_calls=[call]), answer, assistant("done")]
    calls = read(write(tmp_path, {"history": history}))
    assert calls[0].reply.wire() == assistant("look", tool_calls=[call])
    assert calls[1].prompt[-1].wire() == {"role": "tool", "content": "a.py", "tool_call_id": "c1"}


def test_swe_agent_demonstrations_and_other_agents_are_not_calls(tmp_path: Path) -> None:
    history = [
        SYSTEM | {"agent": "main"},
        assistant("shown", is_demo=True, agent="main"),
        TASK | {"agent": "main"},
        assistant("aside", agent="summary"),
        assistant("mine", agent="main"),
    ]
    (call,) = read(write(tmp_path, {"history": history}))
    assert call.reply.content == "mine"
    assert [message.content for message in call.prompt] == [
        "You fix bugs.",
        "shown",
        TASK["content"],
    ]


def test_swe_agent_execution_time_is_the_gap_after_its_step(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, assistant("a"), TASK, assistant("b"), TASK]
    steps = [
        {"response": "a", "execution_time": 1.5},
        {"response": "not kept in the history", "execution_time": 9.0},
        {"response": "b", "execution_time": 2.5},
        {"response": "submit", "execution_time": 4.0},
    ]
    calls = read(write(tmp_path, {"history": history, "trajectory": steps}))
    assert [(call.reply.content, call.gap) for call in calls] == [
        ("a", 0.0),
        ("b", 1.5),
        ("submit", 2.5),
    ]
    assert len(calls[2].prompt) == 6


def test_swe_agent_exact_prompts_are_preferred(tmp_path: Path) -> None:
    steps = [
        {"query": [SYSTEM, TASK], "response": "a", "execution_time": 0.5},
        {"query": [SYSTEM, {"role": "user", "content": "elided"}], "response": "b"},
    ]
    value = {"history": [SYSTEM, TASK, assistant("a"), assistant("b")], "trajectory": steps}
    calls = read(write(tmp_path, value))
    assert [call.prompt[-1].content for call in calls] == ["Fix this one.", "elided"]
    assert [call.gap for call in calls] == [0.0, 0.5]


def test_mini_swe_agent_object_with_timestamps(tmp_path: Path) -> None:
    messages = [
        SYSTEM,
        TASK,
        assistant("a", extra={"timestamp": 100.0}),
        {"role": "user", "content": "out", "extra": {"timestamp": 103.5}},
        assistant("b", extra={"timestamp": 110.0}),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    ]
    value = {"info": {}, "messages": messages, "trajectory_format": "mini-swe-agent-1.1"}
    calls = read(write(tmp_path, value, "run.traj.json"))
    assert [call.gap for call in calls] == [0.0, 3.5]
    assert calls[1].prompt[-1] == Message("user", "out")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"trajectory": []}, "history"),
        ({"history": []}, "history: is empty"),
        ({"history": [SYSTEM, TASK]}, "no assistant message"),
        ({"history": [assistant("a"), TASK]}, "history[0]: the first call has no prompt"),
        ({"history": [SYSTEM, {"role": "user", "content": 3}]}, "$.history[1].content"),
        ({"history": [SYSTEM, {"role": "bot", "content": "x"}]}, "history[1].role"),
        (
            {"history": [SYSTEM, {"role": "user", "content": [{"type": "image_url"}]}]},
            "history[1].content[0]",
        ),
        (
            {"history": [SYSTEM, assistant("a")], "trajectory": [{"execution_time": -1}]},
            "trajectory[0].execution_time",
        ),
        ([], "object"),
    ],
)
def test_bad_files_name_file_field_and_remedy(tmp_path: Path, value: object, told: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(path) in str(error.value)
    assert told in str(error.value)
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b'{"history": [', b'{"history": [{"role": "\xff"}]}', b"not json"]
)
def test_broken_json_is_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run.traj"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="not valid JSON"):
        read(path)
