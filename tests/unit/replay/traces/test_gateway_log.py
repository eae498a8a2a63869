"""A gateway's recording as sessions: branches, waits, text, and what is no recording."""

import json
from pathlib import Path
from typing import Any

import pytest

from alipes.replay.traces.form import MAIN, Session, Trace, Wait
from alipes.replay.traces.gateway_log import read
from alipes.replay.traces.load import load
from alipes.replay.traces.model import Message, ToolCall, TraceError

PATH = Path("calls.jsonl")
HEADER = {"kind": "recording", "version": 1, "began": 100.0, "block_tokens": 64}


def name(text: str) -> str:
    return text.encode().hex().rjust(16, "0")


def call(branch: str, number: int, arrived: float, ended: float, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": "call",
        "session": name("s"),
        "branch": name(branch),
        "number": number,
        "model": "m",
        "arrived": arrived,
        "begun": arrived,
        "ended": ended,
        "prompt": 10 + 10 * number,
        "output": 4,
        "kept": 14 + 10 * (number - 1) if number else 0,
    }
    return fields | more


def trace(*lines: dict[str, Any]) -> Trace:
    return read(PATH, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def only(*lines: dict[str, Any]) -> Session:
    (session,) = trace(HEADER, *lines).sessions
    return session


def sub(branch: str, arrived: float, ended: float, **more: Any) -> dict[str, Any]:
    return call(branch, 0, arrived, ended, **({"parent": name("m"), "parent_calls": 1} | more))


def test_gaps_are_between_an_end_and_the_next_arrival() -> None:
    session = only(call("m", 0, 3, 5), call("m", 1, 7.5, 8))
    first, second = session.branches[0].calls
    assert (session.start, session.model) == (3.0, "m")
    assert (first.gap, first.wait, first.kept) == (0.0, Wait.START, 0)
    assert (second.gap, second.wait, second.kept) == (2.5, Wait.TOOL, 14)


def test_a_call_that_came_when_sub_agents_had_ended_waited_for_them() -> None:
    session = only(call("m", 0, 0, 2), sub("a", 3, 5), sub("b", 3, 9), call("m", 1, 10, 11))
    main, a, b = session.branches
    assert [(one.parent, one.spawned_by) for one in (a, b)] == [(MAIN, 0)] * 2
    assert (a.calls[0].gap, a.calls[0].kept) == (1.0, 0)
    assert main.calls[1].wait is Wait.BRANCH
    assert main.calls[1].joins == (a.name, b.name)
    assert main.calls[1].gap == 1.0


def test_a_sub_agent_that_ended_during_a_call_of_its_parent_is_waited_for_by_none() -> None:
    session = only(
        call("m", 0, 0, 2),
        sub("a", 3, 6, kept=10),
        call("m", 1, 4, 8),
        call("m", 2, 9, 10),
    )
    main, a = session.branches
    assert [one.joins for one in main.calls] == [(), (), ()]
    assert a.calls[0].kept == 10


def test_what_is_missing_keeps_nothing_that_nobody_knows() -> None:
    session = only(call("m", 0, 0, 2), call("m", 2, 4, 5), sub("a", 6, 7, parent_calls=2, kept=9))
    main, a = session.branches
    assert main.calls[1].kept == 0
    assert sum(span.length for span in main.calls[1].added) == main.calls[1].prompt
    assert (a.spawned_by, a.calls[0].kept) == (1, 0)
    orphan = only(call("m", 0, 0, 2), sub("a", 3, 4, parent=name("gone"), kept=9))
    assert (orphan.branches[1].parent, orphan.branches[1].calls[0].kept) == (MAIN, 0)


def test_blocks_are_shared_content_and_what_is_between_is_the_calls_own() -> None:
    blocks = name("x") + name("y")
    session = only(
        call("m", 0, 0, 2, prompt=140, blocks=blocks),
        sub("a", 3, 4, prompt=130, blocks=name("x") + name("z")),
        call("m", 1, 5, 6, prompt=260, kept=144, blocks=name("w")),
    )
    main, a = session.branches
    first, again = main.calls
    assert [span.length for span in first.added] == [64, 64, 12]
    assert a.calls[0].added[0] == first.added[0]
    assert a.calls[0].added[1] != first.added[1]
    assert [span.length for span in again.added] == [48, 64, 4]
    assert [span.stream >= 0 for span in again.added] == [False, True, False]
    assert again.added[2].start == 48


def test_recordings_in_one_file_go_on_in_time() -> None:
    later = HEADER | {"began": 160.0}
    found = trace(HEADER, call("m", 0, 1, 2), later, call("m", 0, 1, 2, session=name("t"))).sessions
    assert [session.start for session in found] == [1.0, 61.0]


def compact(*lines: dict[str, Any]) -> list[bytes]:
    """As the gateway writes them."""
    return [json.dumps(line, separators=(",", ":")).encode() for line in lines]


@pytest.mark.parametrize("left", [1, 12, 40, 0.5, -3, -1])
@pytest.mark.parametrize("after", [b"", b"\n", b'\n{"kind":"reco'])
def test_a_line_that_the_gateway_could_not_end_is_passed_over_with_one_warning(
    left: float, after: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    whole, more = [HEADER, call("m", 0, 0, 1)], call("m", 1, 2, 3, **said(0, reply="é"))
    (cut,) = compact(more)
    cut = cut[: int(len(cut) * left) if isinstance(left, float) else left]
    data = b"\n".join([*compact(*whole), cut]) + after
    assert read(PATH, data) == trace(*whole)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{PATH}: line 3: the gateway ended while it wrote this")
    assert ("and 1 more" in warning) == ("reco" in after.decode())


def test_a_recording_goes_on_after_one_that_could_not_end_its_line() -> None:
    later = HEADER | {"began": 160.0}
    lines = compact(
        HEADER, call("m", 0, 0, 1), call("m", 1, 2, 3), later, call("m", 0, 1, 2, session=name("t"))
    )
    lines[2] = lines[2][:50]
    found = read(PATH, b"\n".join(lines)).sessions
    assert [(session.start, session.calls) for session in found] == [(0.0, 1), (61.0, 1)]


@pytest.mark.parametrize(
    ("number", "line", "told"),
    [
        (1, b'{"kind":"call","session":"00', "line 2: not valid JSON"),
        (2, b"no line of ours", "line 3: not valid JSON"),
        (2, b'{"kind":"call","session":3}', "line 3: session"),
    ],
)
def test_what_is_torn_elsewhere_is_no_end_of_a_recording(
    number: int, line: bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = compact(HEADER, call("m", 0, 0, 1), call("m", 1, 2, 3))
    lines[number] = line
    with pytest.raises(TraceError, match=told):
        read(PATH, b"\n".join(lines))
    assert not caplog.records


def said(kept: int, *added: Any, reply: str = "raw") -> dict[str, Any]:
    return {"messages": {"kept": kept, "added": list(added), "reply": reply}}


def test_text_becomes_turns_with_replies_as_the_client_told_them() -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    function = {"name": "ls", "arguments": "{}"}
    told = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    answer = {"role": "tool", "content": "files", "tool_call_id": "c"}
    session = only(
        call("m", 0, 0, 1, **said(0, asked)),
        call("m", 1, 2, 3, **said(1, told, answer)),
        call("m", 2, 4, 5, **said(0, asked, reply="last")),
    )
    turns = [one.turn for one in session.branches[0].calls]
    assert all(turns)
    first, second, third = turns
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.added == (Message("user", "go"),)
    assert first.reply == Message("assistant", "", (ToolCall("c", "ls", "{}"),))
    assert (second.kept, second.added) == (2, (Message("tool", "files", (), "c"),))
    assert second.reply == Message("assistant", "raw")
    assert (third.kept, third.reply.content) == (0, "last")


def test_a_session_of_which_text_is_missing_has_none() -> None:
    asked = {"role": "user", "content": "go"}
    some = only(call("m", 0, 0, 1, **said(0, asked)), call("m", 1, 2, 3))
    lost = only(call("m", 0, 0, 1, **said(2, asked)))
    assert all(one.turn is None for session in (some, lost) for one in session.branches[0].calls)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([call("m", 0, 0, 1)], "line 1: stands before any header"),
        ([HEADER | {"version": 2}], "line 1: version: 2 is unknown here"),
        ([HEADER, call("m", 0, 2, 1)], "line 2: ended: the call ends before it begins"),
        ([HEADER, call("m", 0, 0, 1, blocks=name("x"))], "line 2: blocks: 1 hashes, where 0"),
        ([HEADER, call("m", 0, 0, 1, session="me")], "line 2: session"),
        ([HEADER, call("m", 0, 0, 1, more=1)], "more"),
        ([HEADER, call("m", 0, 0, 1, output=0)], "line 2: output"),
        (
            [
                HEADER,
                call("m", 0, 0, 1, **said(0, {"role": "user", "content": [{"type": "image"}]})),
            ],
            "line 2: messages.added[0].content[0]",
        ),
    ],
)
def test_what_is_no_recording_is_told_by_line_and_field(
    lines: list[dict[str, Any]], told: str
) -> None:
    with pytest.raises(TraceError) as error:
        trace(*lines)
    assert told in str(error.value)


def test_load_knows_a_recording_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "some-name"
    path.write_text(f"{json.dumps(HEADER)}\n{json.dumps(call('m', 0, 0, 1))}\n")
    (session,) = load([path]).sessions
    assert session.id == name("s")
