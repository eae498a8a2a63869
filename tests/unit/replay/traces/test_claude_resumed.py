"""Claude Code logs whose lines were written again, or copied into the log of another session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from alipes.replay.traces.load import load, load_told

Json = dict[str, object]
Said = list[Json]


def line(kind: str, uuid: str, parent: str | None, second: float, message: Json) -> Json:
    hour, minute = int(second // 3600), int(second // 60 % 60)
    stamp = f"2026-03-11T{2 + hour:02}:{minute:02}:{second % 60:06.3f}Z"
    own: Json = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "one"}
    return {**own, "timestamp": stamp, "isSidechain": False, "message": message}


def user(uuid: str, parent: str | None, second: float, content: object) -> Json:
    return line("user", uuid, parent, second, {"role": "user", "content": content})


def reply(uuid: str, parent: str, second: float, name: str, part: Json, *counts: int) -> Json:
    usage = dict(
        zip(("input_tokens", "cache_read_input_tokens", "output_tokens"), counts, strict=True)
    )
    message: Json = {"id": name, "role": "assistant", "model": "big", "content": [part]}
    return line("assistant", uuid, parent, second, {**message, "usage": usage})


def text(value: str) -> Json:
    return {"type": "text", "text": value}


LS = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls -la"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt\nb.txt"}
ONCE = [
    user("u1", None, 20, "list the files"),
    reply("a1", "u1", 21.204, "msg_x", text("I will list them now."), 2288, 22137, 2),
    reply("a2", "a1", 22.65, "msg_x", LS, 2288, 22137, 148),
    user("u2", "a2", 23, [RESULT]),
    reply("a3", "u2", 25, "msg_y", text("Two files."), 203, 24422, 9),
]
GROWING = reply("a3", "u2", 24, "msg_y", text("Two"), 203, 24422, 1)
MORE = [
    user("u3", "a3", 1200, "delete b"),
    reply("a4", "u3", 1204, "msg_z", text("Done."), 103, 24700, 5),
]
TWO = [(24425, 0, 148, 0.0), (24625, 24573, 9, 0.35)]
THREE = [*TWO, (24803, 24634, 5, 1175.0)]
DRAWN = [("I will list them now.", ["t1"]), ("Two files.", [])]


def of_session(name: str, lines: Said) -> Said:
    return [{**line, "sessionId": name} for line in lines]


def renamed(lines: Said) -> Said:
    """With ids of lines of their own, as some versions copy them."""
    return [
        {**line, "uuid": f"{line['uuid']}'", "parentUuid": f"{line['parentUuid']}'"}
        for line in lines
    ]


def save(folder: Path, name: str, lines: Said) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(*paths: Path) -> tuple[list[list[tuple[int, int, int, float]]], list[object]]:
    """((prompt, kept, output, gap) of each call of each session, (text, tools) of each reply)"""
    sessions = load(paths).sessions
    calls = [call for one in sessions for call in one.branches[0].calls]
    replies = [call.turn.reply for call in calls if call.turn]
    return (
        [[(c.prompt, c.kept, c.output, c.gap) for c in one.branches[0].calls] for one in sessions],
        [(one.content, [tool.id for tool in one.tool_calls]) for one in replies],
    )


WRITTEN_AGAIN: list[Callable[[Said], Said]] = [
    lambda lines: lines,
    lambda lines: [line for line in lines for _ in range(4)],
    lambda lines: lines + lines,
    lambda lines: lines + renamed(lines[1:3]),
    # The reply so far in every line.
    lambda lines: [
        *lines[:2],
        reply("a2", "a1", 22.65, "msg_x", text(""), 2288, 22137, 148)
        | {"message": lines[2]["message"] | {"content": [text("I will list them now."), LS]}},
        *lines[3:],
    ],
    # A line that has grown since.
    lambda lines: [
        *lines[:4],
        reply("a3", "u2", 24, "msg_y", {"type": "x"}, 203, 24422, 1),
        lines[4],
    ],
]


@pytest.mark.parametrize("again", WRITTEN_AGAIN)
def test_lines_written_again_count_once(tmp_path: Path, again: Callable[[Said], Said]) -> None:
    assert read(save(tmp_path, "log.jsonl", again(ONCE))) == ([TWO], DRAWN)


def test_the_same_file_twice_is_one(tmp_path: Path) -> None:
    path, copy = (save(tmp_path, name, ONCE) for name in ("a.jsonl", "b.jsonl"))
    assert read(path, copy) == read(path, path) == ([TWO], DRAWN)


@pytest.mark.parametrize("copied", [lambda lines: lines, renamed], ids=["as is", "new ids"])
def test_a_resumed_session_is_the_same_one(tmp_path: Path, copied: Callable[[Said], Said]) -> None:
    again = of_session("two", [*copied(ONCE), *MORE])
    once, resumed = save(tmp_path, "once.jsonl", ONCE), save(tmp_path, "resumed.jsonl", again)
    drawn = [*DRAWN, ("Done.", [])]
    assert read(resumed) == ([THREE], drawn)
    assert read(once, resumed) == read(resumed, once) == ([THREE], drawn)
    assert read(save(tmp_path, "both.jsonl", [*ONCE, *again])) == ([THREE], drawn)
    trace, taken = load_told([once, resumed])
    assert [one.id for one in trace.sessions] == ["one"]
    assert [one.warnings for one in taken] == [
        (),
        ("session two has replies of one in it; read as one",),
    ]


def test_a_session_that_went_on_beside_its_copy_is_one_in_order_of_time(tmp_path: Path) -> None:
    late = [
        user("u4", "a3", 3000, "and c"),
        reply("a5", "u4", 3002, "msg_w", text("Gone."), 203, 24600, 5),
    ]
    resumed = save(tmp_path, "resumed.jsonl", of_session("two", [*ONCE, *MORE]))
    went_on = save(tmp_path, "once.jsonl", [*ONCE, *late])
    # It was taken up again at the second reply: what the provider had of that is kept.
    assert read(went_on, resumed)[0] == [[*THREE, (24803, 24600, 5, 1796.0)]]


def test_other_sessions_with_the_same_ids_stay_apart(tmp_path: Path) -> None:
    other = of_session("two", json.loads(json.dumps(ONCE).replace("T02:", "T05:")))
    for one in other:
        one["message"] = json.loads(json.dumps(one["message"]).replace("files", "folders"))
    paths = [save(tmp_path, "a.jsonl", ONCE), save(tmp_path, "b.jsonl", other[:1] + other[3:])]
    trace = load(paths)
    assert [(one.id, one.start, one.calls) for one in trace.sessions] == [
        ("one", 0.0, 2),
        ("two", 10803.0, 1),
    ]


def test_files_of_sub_agents_are_branches_of_their_session(tmp_path: Path) -> None:
    inner = [
        user("s1", None, 22.7, "look"),
        reply("s2", "s1", 22.8, "msg_s", text("ok"), 300, 0, 1),
    ]
    agent = [{**line, "isSidechain": True, "agentId": "x"} for line in inner]
    main, sub = save(tmp_path, "one.jsonl", ONCE), save(tmp_path, "agent-x.jsonl", agent)
    (session,) = load([main, sub]).sessions
    assert [(one.name, one.spawned_by) for one in session.branches] == [("main", -1), ("x", 0)]
    assert session.branches[0].calls[1].joins == ("x",)
    another = save(tmp_path, "agent-y.jsonl", [{**line, "agentId": "y"} for line in agent])
    alone = load([sub, another]).sessions
    assert [(one.id, len(one.branches)) for one in alone] == [("one/x", 1), ("one/y", 1)]
