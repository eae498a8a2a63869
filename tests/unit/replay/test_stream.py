import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.stream import LONGEST_LINE, Answer, Lines, problem_of


def answer_of(*events: object, done: bool = True) -> Answer:
    clock: Iterator[int] = iter(range(1000))
    answer = Answer()
    for event in events:
        line = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        answer.take(line, lambda: next(clock))
    if done:
        answer.take("data: [DONE]", lambda: next(clock))
    answer.close()
    return answer


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def test_the_first_output_is_text_not_a_role_and_not_a_comment() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    answer = answer_of(
        ": keep-alive",
        "",
        delta(role="assistant", content=""),
        delta(content="a"),
        delta(content="b"),
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": usage},
    )
    assert (answer.first, answer.last, answer.error) == (0, 1, "")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (9, 2, 4)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    "first",
    [
        delta(content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(reasoning=""),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
        {"choices": [{"index": 0, "text": "", "finish_reason": None}]},
    ],
)
def test_a_token_that_shows_as_nothing_yet_is_the_first_output(first: dict[str, object]) -> None:
    answer = answer_of(delta(role="assistant", content=""), first, delta(content="a"))
    assert (answer.first, answer.last) == (0, 1)
    assert answer_of(first, delta(content="a")).first == 0


def test_what_brings_no_token_is_no_output() -> None:
    opening = delta(role="assistant", content="")
    answer = answer_of(opening, delta(), {"choices": [], "usage": {}}, delta(content="a"))
    assert (answer.first, answer.last) == (0, 0)
    assert answer_of(opening, delta()).first is None
    silence = {"choices": [{"index": 0, "text": "", "finish_reason": None}], "keep_alive": True}
    assert answer_of(silence, silence).first is None


def test_a_choice_that_ends_without_any_text_has_drawn_by_then() -> None:
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    assert answer_of(delta(role="assistant", content=""), end).first == 0
    assert answer_of(delta(content="a"), end).last == 0


def test_the_digest_is_of_the_text_however_it_was_cut() -> None:
    assert (
        answer_of(delta(content="ab")).output
        == answer_of(delta(content="a"), delta(content="b")).output
    )
    assert answer_of(delta(content="ab")).output != answer_of(delta(content="ba")).output
    one, other = (
        delta(tool_calls=[{"index": 0, "id": name, "function": {"name": "f", "arguments": "{}"}}])
        for name in ("id1", "id2")
    )
    assert answer_of(one).output == answer_of(other).output
    assert answer_of(one).first == 0


def test_what_goes_wrong_in_a_stream_is_an_error() -> None:
    assert "without [DONE]" in answer_of(delta(content="a"), done=False).error
    assert answer_of({"error": {"message": "gone"}}).error == "in the stream: gone"
    assert "not a completion chunk" in answer_of("data: {oops").error
    assert "not a completion chunk" in answer_of({"choices": 3}).error


def test_http_problems_are_one_line() -> None:
    assert problem_of(404, b'{"error": {"message": "no such model"}}') == "404: no such model"
    assert problem_of(400, b'{"type": "error", "error": {"message": "bad"}}') == "400: bad"
    assert problem_of(502, b"<html>") == "502: <html>"
    assert problem_of(500, b'{"error": "plain"}') == "500: plain"


@given(st.lists(st.binary(max_size=9)), st.integers(1, 5))
def test_lines_are_the_same_however_the_stream_comes(parts: list[bytes], size: int) -> None:
    whole = b"\n".join(parts) + b"\n"
    lines, found = Lines(), []
    for at in range(0, len(whole), size):
        found += lines.take(whole[at : at + size])
    # Where a carriage return and its line feed come apart there is an empty line between.
    told = [line.strip("\r\n") for line in found if line.strip("\r\n")]
    assert told == [line.decode(errors="replace") for line in whole.splitlines() if line]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_text_may_hold_what_ends_a_line_elsewhere(mark: str) -> None:
    event = json.dumps(delta(content=f"a{mark}b"), ensure_ascii=False)
    [line] = Lines().take(f"data: {event}\r\n".encode())
    answer = answer_of(line)
    assert (answer.error, answer.first) == ("", 0)


def test_a_line_without_end_is_given_up() -> None:
    lines, part = Lines(), b"x" * (LONGEST_LINE // 2)
    assert [lines.take(part), lines.take(part)] == [[], []]
    with pytest.raises(ValueError, match="longer than"):
        lines.take(b"x")


def test_what_is_nested_without_end_is_no_answer() -> None:
    deep = "[" * 100_000
    assert "not a completion chunk" in answer_of(f'data: {{"error": {deep}').error
    assert problem_of(500, deep.encode()).startswith("500: [[[")
