"""What a recording tells of calls, and what not."""

import json
from dataclasses import replace
from typing import Any

from alipes.gateway.telemetry.recording import RecordedCall, Recording

SECRETS = ("tenant", "my-session", "my prompt", "my reply", "my-branch")
SECOND = 1_000_000_000


def call(**more: Any) -> RecordedCall:
    fields: dict[str, Any] = {
        "tenant": "tenant",
        "model": "m",
        "session": "my-session",
        "branch": b"my-branch-------",
        "number": 0,
        "parent": b"",
        "parent_calls": 0,
        "arrived": 3 * SECOND,
        "begun": 4 * SECOND,
        "ended": 6 * SECOND,
        "prompt": 130,
        "kept": 0,
        "drawn": (7, 8, 9),
        "stop_ids": (9,),
        "keys": (b"k" * 16, b"l" * 16),
        "messages": [{"role": "user", "content": "my prompt"}],
    }
    return RecordedCall(**(fields | more))


def decode(model: str, tokens: Any) -> str:
    return f"my reply {model} {list(tokens)}"


def shown(recording: Recording, one: RecordedCall) -> Any:
    return json.loads(recording.line(one))


def test_a_line_has_lengths_times_and_hashes_alone() -> None:
    line = Recording(b"key", 2 * SECOND).line(call())
    assert line.endswith(b"\n")
    assert not [secret for secret in SECRETS if secret.encode() in line]
    fields = json.loads(line)
    assert (fields["arrived"], fields["begun"], fields["ended"]) == (1.0, 2.0, 4.0)
    assert (fields["prompt"], fields["output"], fields["model"]) == (130, 3, "m")
    assert len(fields["blocks"]) == 32
    assert "messages" not in fields
    assert "parent" not in fields


def test_equal_things_have_equal_hashes_under_one_key_only() -> None:
    recording, other = Recording(b"key", 0), Recording(b"another", 0)
    one = shown(recording, call())
    again = shown(recording, call(tenant="tenant", keys=(b"l" * 16, b"x" * 16)))
    assert one["session"] == again["session"]
    assert one["blocks"][16:] == again["blocks"][:16]
    assert one["blocks"][:16] != again["blocks"][16:]
    elsewhere = shown(other, call())
    assert {one[name] for name in ("session", "branch", "blocks")}.isdisjoint(
        elsewhere[name] for name in ("session", "branch", "blocks")
    )
    assert shown(recording, call(tenant="other"))["session"] != one["session"]
    assert shown(recording, call(parent=call().branch))["parent"] == one["branch"]


def test_text_is_recorded_where_it_is_asked_for_and_each_message_once() -> None:
    recording = Recording(b"key", 0, decode)
    first = shown(recording, call())["messages"]
    assert first == {
        "kept": 0,
        "added": [{"role": "user", "content": "my prompt"}],
        "reply": "my reply m [7, 8]",
    }
    longer = [{"content": "my prompt", "role": "user"}, {"role": "user", "content": "more"}]
    second = shown(recording, call(messages=longer))["messages"]
    assert (second["kept"], second["added"]) == (1, [{"content": "more", "role": "user"}])
    elsewhere = shown(recording, call(messages=longer, branch=b"other"))["messages"]
    assert elsewhere["kept"] == 0
    assert "messages" not in shown(recording, call(messages=None))


def test_text_is_told_anew_for_a_branch_that_was_forgotten() -> None:
    recording = Recording(b"key", 0, decode)
    recording.line(call())
    for number in range(4096):
        recording.line(replace(call(), branch=number.to_bytes(16, "little")))
    assert shown(recording, call())["messages"]["kept"] == 0
