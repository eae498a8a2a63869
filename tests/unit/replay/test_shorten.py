import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.conversation import Exchange, conversation_of
from alipes.replay.shorten import (
    MIN_SHARE,
    shorten_conversation,
    shorten_message,
    shorten_text,
    smaller_share,
    text_of,
    texts_of,
    tokens_needed,
)
from alipes.replay.traces.load import load
from alipes.replay.traces.model import Message, ToolCall

SHIPPED = Path(__file__).parents[3] / "replay" / "data" / "marshmallow-1867-xml.traj"


@given(st.text(max_size=2000), st.floats(MIN_SHARE, 1))
def test_a_shortened_text_keeps_both_ends_and_is_never_longer(text: str, share: float) -> None:
    short = shorten_text(text, share)
    assert len(short) <= len(text)
    if short != text:
        head, tail = short.split(
            f"\n[{len(text) - max(48, int(len(text) * share))} characters cut]\n"
        )
        assert head
        assert tail
        assert text.startswith(head)
        assert text.endswith(tail)


def test_the_marker_tells_what_is_missing() -> None:
    short = shorten_text("a" * 500 + "b" * 500, 0.3)
    assert short == "a" * 200 + "\n[700 characters cut]\n" + "b" * 100


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.01])
def test_prompts_that_were_prefixes_still_are(share: float) -> None:
    whole = conversation_of(load([SHIPPED]).sessions[0])
    ((*_, last),) = whole
    (short,) = shorten_conversation(whole, share)
    for before, after in pairwise(short):
        begin = (*before.prompt, before.reply)
        assert after.prompt[: len(begin)] == begin
    assert [len(one.prompt) for one in short] == [len(one.prompt) for one in whole[0]]
    texts = [sum(len(text_of(message)) for message in one.prompt) for one in (short[-1], last)]
    assert texts[0] < texts[1]


def test_tool_arguments_stay_json() -> None:
    arguments = json.dumps({"text": "x" * 400, "line": 3, "more": ["y" * 400]})
    message = Message("assistant", "ok", (ToolCall("c", "edit", arguments),))
    short = json.loads(shorten_message(message, 0.25).tool_calls[0].arguments)
    assert short["line"] == 3
    assert short["text"] == shorten_text("x" * 400, 0.25)
    assert short["more"] == [shorten_text("y" * 400, 0.25)]
    broken = Message("assistant", "", (ToolCall("c", "edit", "{" + "x" * 400),))
    assert len(shorten_message(broken, 0.25).tool_calls[0].arguments) < 200


def test_the_longest_call_sizes_the_session() -> None:
    short, long = Message("user", "a b"), Message("user", "a b c d e")
    reply = Message("assistant", "r")
    calls = [Exchange((long,), reply), Exchange((short, reply, short), reply)]
    counts = {text: len(text.split()) for text in texts_of(calls)}
    bare = dict.fromkeys(counts, 0)
    template = tokens_needed(calls, bare)
    assert tokens_needed(calls, counts) == template + 2 + 1 + 2 + 1


def test_the_search_for_a_share_always_ends() -> None:
    share: float | None = 1.0
    steps = 0
    while share is not None:
        share = smaller_share(share, 101, 100)
        steps += 1
    assert steps < 300
    assert smaller_share(1.0, 200, 100) == 0.5
