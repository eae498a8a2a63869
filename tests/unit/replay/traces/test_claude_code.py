import json
from pathlib import Path

import pytest

from alipes.replay.traces.form import Session, Wait
from alipes.replay.traces.load import load
from alipes.replay.traces.model import Message, ToolCall, TraceError

Json = dict[str, object]


class Writer:
    """Lines as the client writes them; each one's parent is the line before on its chain."""

    def __init__(self) -> None:
        self.lines: list[Json] = []
        self.last: dict[str, str | None] = {}

    def line(self, kind: str, second: float, agent: str = "", **more: object) -> str:
        uuid = f"u{len(self.lines)}"
        stamp = f"2025-07-01T10:{int(second) // 60:02}:{second % 60:06.3f}Z"
        self.lines.append(
            {
                "type": kind,
                "uuid": uuid,
                "parentUuid": self.last.get(agent),
                "sessionId": "session",
                "isSidechain": bool(agent),
                "timestamp": stamp,
                **more,
            }
        )
        self.last[agent] = uuid
        return uuid

    def user(self, second: float, content: object, agent: str = "", **more: object) -> str:
        message = {"role": "user", "content": content}
        return self.line("user", second, agent, message=message, **more)

    def result(self, second: float, tool: str, text: str, agent: str = "") -> str:
        return self.user(
            second, [{"type": "tool_result", "tool_use_id": tool, "content": text}], agent
        )

    def reply(
        self,
        second: float,
        name: str,
        part: Json,
        prompt: int = 0,
        cached: int = 0,
        output: int = 1,
        agent: str = "",
        model: str = "big",
    ) -> str:
        usage = {
            "input_tokens": prompt - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
        }
        message = {"id": name, "model": model, "role": "assistant", "content": [part]}
        if prompt:
            message["usage"] = usage
        return self.line("assistant", second, agent, message=message)

    def save(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def tool(name: str) -> Json:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": name}}


def read(writer: Writer, folder: Path) -> Session:
    (session,) = load([writer.save(folder / "log.jsonl")], count=len).sessions
    return session


def test_replies_in_parts_and_tool_results_between_them_are_one_call(tmp_path: Path) -> None:
    log = Writer()
    log.lines.append({"type": "summary", "summary": "Fix it", "leafUuid": "u9"})
    log.user(0, "fix it")
    log.reply(4, "m1", text("Two tools. "), 1000, output=3)
    log.reply(5, "m1", tool("t1"), 1000, output=3)
    log.result(6, "t1", "one")
    log.reply(6.5, "m1", tool("t2"), 1000, output=80)
    log.result(8, "t2", "two")
    log.reply(9.25, "m2", text("Done."), 1200, 1000, 20)
    log.line("system", 9.5, subtype="turn_duration")
    log.user(69.25, "thanks")
    log.reply(70, "m3", text("Bye."), 1230, 1200, 5)
    session = read(log, tmp_path)
    calls = session.branches[0].calls
    assert (session.id, session.agent, session.model) == ("session", "claude-code", "big")
    assert [call.wait for call in calls] == [Wait.START, Wait.TOOL, Wait.USER]
    assert [call.gap for call in calls] == [0.0, 1.5, 60.0]
    assert [(call.prompt, call.kept, call.output) for call in calls] == [
        (1000, 0, 80),
        (1200, 1080, 20),
        (1230, 1220, 5),
    ]
    turns = [call.turn for call in calls]
    assert turns[0]
    assert turns[0].reply.tool_calls == (
        ToolCall("t1", "Bash", '{"command": "t1"}'),
        ToolCall("t2", "Bash", '{"command": "t2"}'),
    )


def test_results_that_stand_within_a_reply_follow_it(tmp_path: Path) -> None:
    log = Writer()
    log.user(0, "fix it")
    log.reply(4, "m1", tool("t1"), 1000)
    log.result(6, "t1", "one")
    log.reply(6.5, "m1", tool("t2"), 1000)
    log.result(8, "t2", "two")
    log.reply(9, "m2", text("Done."), 1200)
    (first, second) = (call.turn for call in read(log, tmp_path).branches[0].calls)
    assert first
    assert second
    assert first.added == (Message("user", "fix it"),)
    assert (second.kept, [message.content for message in second.added]) == (2, ["one", "two"])


def test_without_counts_lengths_are_those_of_the_text(tmp_path: Path) -> None:
    log = Writer()
    log.user(0, "12345")
    log.reply(1, "m1", {"type": "thinking", "thinking": "hmm"})
    log.reply(2, "m1", text("1234"))
    log.user(3, "1")
    log.reply(4, "m2", text("123"))
    calls = read(log, tmp_path).branches[0].calls
    assert [(call.prompt, call.kept, call.output) for call in calls] == [(5, 0, 7), (13, 12, 3)]


def test_compaction_and_rewinding_keep_what_was_cached(tmp_path: Path) -> None:
    log = Writer()
    start = log.user(0, "start")
    log.reply(1, "m1", text("a"), 5000)
    log.user(2, "more")
    log.reply(3, "m2", text("b"), 6000, 5000)
    log.last[""] = start
    log.user(4, "another way")
    log.reply(5, "m3", text("c"), 5500, 4800)
    log.last[""] = None
    log.line("system", 6, subtype="compact_boundary")
    log.user(7, "summary", isCompactSummary=True)
    log.reply(8, "m4", text("d"), 3000, 2000)
    calls = read(log, tmp_path).branches[0].calls
    assert [call.kept for call in calls] == [0, 5001, 4800, 2000]
    assert [call.turn and call.turn.kept for call in calls] == [0, 2, 1, 0]


@pytest.mark.parametrize("named", [True, False], ids=["agentId", "by parents"])
def test_subagents_are_spawned_and_joined(tmp_path: Path, named: bool) -> None:
    log = Writer()
    log.user(0, "go")
    log.reply(2, "m1", tool("t1"), 1000)
    for number, agent in enumerate(("one", "two")):
        log.user(3 + number, f"search {agent}", agent)
        log.reply(5 + number, f"{agent}1", tool("s1"), 300, 90 * number, agent=agent, model="small")
        log.result(6 + number, "s1", "found", agent)
        log.reply(9 + number, f"{agent}2", text("it"), 400, 300, agent=agent, model="small")
    log.result(10.5, "t1", "it and it")
    log.reply(12, "m2", text("ok"), 1100)
    if named:
        for line in log.lines:
            if line["isSidechain"]:
                line["agentId"] = "one" if line["uuid"] in ("u2", "u3", "u4", "u5") else "two"
    session = read(log, tmp_path)
    main, one, two = session.branches
    if named:
        assert (one.name, two.name) == ("one", "two")
    assert main.calls[1].wait is Wait.BRANCH
    assert main.calls[1].joins == (one.name, two.name)
    assert main.calls[1].gap == 0.5
    for branch, gap in ((one, 1.0), (two, 2.0)):
        assert (branch.parent, branch.spawned_by, branch.model) == ("main", 0, "small")
        assert [call.gap for call in branch.calls] == [gap, 1.0]
        # The reply's count was from before its end: its text is 21 long.
        assert [call.kept for call in branch.calls] == [0, 321]
    assert one.calls[0].added[0] == two.calls[0].added[0]
    assert one.calls[0].added[0].length == 90
    assert one.calls[0].added[1] != two.calls[0].added[1]


def test_a_subagent_in_the_background_is_not_joined(tmp_path: Path) -> None:
    log = Writer()
    log.user(0, "go")
    log.reply(2, "m1", tool("t1"), 1000)
    log.user(3, "search", "one")
    log.reply(30, "s1", text("it"), 300, agent="one")
    log.result(3.5, "t1", "started")
    log.reply(5, "m2", tool("t2"), 1100)
    log.result(40, "t2", "done")
    log.reply(41, "m3", text("ok"), 1200)
    main, _ = read(log, tmp_path).branches
    assert all(not call.joins for call in main.calls)


def test_a_file_of_a_subagent_alone_is_a_session(tmp_path: Path) -> None:
    log = Writer()
    log.user(3, "search", "one", agentId="one")
    log.reply(30, "s1", text("it"), 300, agent="one")
    log.lines[-1]["agentId"] = "one"
    session = read(log, tmp_path)
    assert session.id == "session/one"
    assert [branch.name for branch in session.branches] == ["main"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"timestamp": None}, "timestamp"),
        ({"timestamp": "0001-01-01T00:00:00"}, "timestamp"),
        ({"isSidechain": "no"}, "isSidechain"),
        ({"message": {"content": 3}}, "message.content"),
        ({"message": {"content": [{"type": "text", "text": 1}]}}, "message.content[0].text"),
        ({"message": None}, "message"),
    ],
)
def test_a_fault_names_line_and_field(tmp_path: Path, change: Json, field: str) -> None:
    log = Writer()
    log.user(0, "go")
    log.reply(2, "m1", text("a"), 1000)
    log.lines[1] |= change
    with pytest.raises(TraceError) as caught:
        read(log, tmp_path)
    assert f"log.jsonl: line 2: {field}: " in str(caught.value)


def test_lines_that_say_nothing_need_no_time(tmp_path: Path) -> None:
    log = Writer()
    log.user(0, "go")
    log.line("system", 1)
    del log.lines[-1]["timestamp"]
    log.reply(2, "m1", text("a"), 1000)
    assert read(log, tmp_path).calls == 1


def test_a_log_without_replies_is_refused(tmp_path: Path) -> None:
    log = Writer()
    log.user(0, "go")
    log.reply(1, "m1", text("API error"), model="<synthetic>")
    with pytest.raises(TraceError, match="holds no reply"):
        read(log, tmp_path)
