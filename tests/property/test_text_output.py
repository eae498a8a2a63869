"""Stops, decoding and tool calls do not depend on how a reply is cut into pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.decode import Pieces
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    merged,
)
from alipes.gateway.text.reply.family import HERMES, ReplyForm, form_of
from alipes.gateway.text.reply.json_scan import ObjectScanner
from alipes.gateway.text.stops import StopMatcher

letters = st.text(alphabet="ab<", max_size=12)


def chunks(text: str, sizes: Sequence[int]) -> list[str]:
    parts, at = [], 0
    for size in itertools.chain(sizes, itertools.repeat(1)):
        if at >= len(text):
            return parts
        parts.append(text[at : at + size])
        at += size
    raise AssertionError


sizes = st.lists(st.integers(1, 9), max_size=30)


@given(text=letters, stops=st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3), cut=sizes)
def test_stop_matcher_equals_the_slow_model(text: str, stops: list[str], cut: list[int]) -> None:
    expected, match = text, None
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            match = max(ending, key=len)
            expected = text[: end - len(match)]
            break
    matcher = StopMatcher(stops)
    seen = ""
    for part in chunks(text, cut):
        seen += matcher.push(part)
        assert expected.startswith(seen)
    assert seen + matcher.finish() == expected
    assert matcher.matched == match


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def pieces(tokenizer: Tokenizer) -> Pieces:
    return Pieces(tokenizer)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 60_000)), max_size=40),
    size=st.integers(1, 5),
)
def test_decoder_equals_decoding_at_once(
    tokenizer: Tokenizer, pieces: Pieces, ids: list[int], size: int
) -> None:
    decoder = pieces.decoder()
    parts = [decoder.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join(parts) + decoder.finish() == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_decoder_never_shows_a_broken_character(
    tokenizer: Tokenizer, pieces: Pieces, text: str
) -> None:
    ids = tokenizer.encode(text).ids
    assume("\ufffd" not in text and tokenizer.decode(ids, skip_special_tokens=False) == text)
    decoder = pieces.decoder()
    assert all("\ufffd" not in decoder.push([i]) for i in ids)
    assert b"".join(pieces.piece(i)[1] for i in ids) == text.encode()


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
arguments = st.dictionaries(
    st.text(max_size=5), st.one_of(json_values, st.just("</tool_call>")), max_size=3
)


@given(value=arguments, indent=st.sampled_from([None, 2]), junk=st.characters())
def test_scanner_accepts_objects_and_stops_after_them(
    value: dict[str, object], indent: int | None, junk: str
) -> None:
    scanner = ObjectScanner()
    text = json.dumps(value, indent=indent)
    for letter in text[:-1]:
        assert scanner.feed(letter)
        assert not scanner.done
    assert scanner.feed(text[-1])
    assert scanner.done
    assert scanner.feed(junk) is (junk in " \t\r\n")


@given(text=st.text(alphabet='{}[]",:\\u12e-.tru nla\n', max_size=14).map(lambda t: "{" + t))
@example('{"a":tru}')
@example('{"a":01}')
@example('{"a":"\\u00zz"}')
@example('{"a":[1,]}')
@example('{"a":1,}')
def test_scanner_agrees_with_the_json_module(text: str) -> None:
    scanner = ObjectScanner()
    accepted = all(scanner.feed(letter) for letter in text) and scanner.done
    try:
        json.loads(text, strict=False)
        valid = True
    except ValueError:
        valid = False
    assert accepted == valid


FORMS = {
    form.name: form
    for form in (
        form_of(sign, ())
        for sign in ("", "<function=", "<｜tool▁calls▁begin｜>", "<arg_key>", "<|python_tag|>")
    )
}
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = (Tool("f", None, SCHEMA),)


def parse(parts: Sequence[str], form: ReplyForm = HERMES) -> list[Delta]:
    count = itertools.count()
    parser = form.parser(TOOLS, False, lambda: f"call_{next(count)}")
    return merged([d for part in parts for d in parser.push(part)] + parser.finish())


calls = st.builds(
    lambda name, value, indent: (
        name,
        value,
        json.dumps({"name": name, "arguments": value}, indent=indent, ensure_ascii=False),
    ),
    st.text(max_size=6),
    arguments,
    st.sampled_from([None, 1]),
)
plain = st.text(alphabet="ab<tol_ c>/\n{", max_size=10)
noise = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool_call>{",
        '<tool_call>{"name": "f", "arguments": {"a"',
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"arguments": {"a": {}}, "name": "g"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        " \n",
        "<think>",
        "</think>",
        "<function=",
        "<function=f>",
        "<parameter=s>\n",
        "<parameter=n>",
        "\n</parameter>",
        "</parameter>\n",
        "</function>",
        "<arg_key>s</arg_key>\n<arg_value>",
        "<arg_key>n</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "f",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>f\n```json\n",
        "f<｜tool▁sep｜>",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|python_tag|>",
        '{"name": "f", "parameters": {"s": "',
        '"}}',
        ";",
    ]
)
replies = st.lists(
    st.one_of(plain, noise, calls.map(lambda c: f"<tool_call>\n{c[2]}\n</tool_call>")), max_size=8
).map("".join)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=200, deadline=None)
@given(text=replies, cut=sizes)
def test_replies_do_not_depend_on_the_pieces(form: ReplyForm, text: str, cut: list[int]) -> None:
    whole = parse([text], form)
    assert parse(chunks(text, cut), form) == whole
    assert parse(list(text), form) == whole
    open_calls: dict[int, str] = {}
    for delta in whole:
        if isinstance(delta, ToolStart):
            open_calls[delta.index] = ""
        elif isinstance(delta, ToolArguments):
            open_calls[delta.index] += delta.text
        elif isinstance(delta, ToolEnd):
            said = open_calls.pop(delta.index)
            if delta.whole:
                assert isinstance(json.loads(said), dict)
    assert not open_calls


@settings(max_examples=200, deadline=None)
@given(
    made=st.lists(st.tuples(st.text(alphabet="xyz .,", max_size=6), calls), max_size=4),
    last=st.text(alphabet="xyz .,", max_size=6),
    cut=sizes,
)
def test_well_formed_calls_come_out_in_order(
    made: list[tuple[str, tuple[str, dict[str, object], str]]], last: str, cut: list[int]
) -> None:
    text = "".join(f"{before}\n<tool_call>\n{c[2]}\n</tool_call>" for before, c in made) + last
    deltas = parse(chunks(text, cut))
    starts = [d for d in deltas if isinstance(d, ToolStart)]
    assert [(d.index, d.id) for d in starts] == [(i, f"call_{i}") for i in range(len(made))]
    assert [d.name for d in starts] == [c[0] for _, c in made]
    for index, (_, call) in enumerate(made):
        mine = [d.text for d in deltas if isinstance(d, ToolArguments) and d.index == index]
        assert json.loads("".join(mine)) == call[1]
    shown = "".join(d.text for d in deltas if isinstance(d, TextDelta))
    assert "".join(shown.split()) == "".join("".join([b for b, _ in made] + [last]).split())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=150, deadline=None)
@given(text=replies)
@example(text="a\n<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>b")
def test_text_without_calls_is_returned_unchanged(form: ReplyForm, text: str) -> None:
    deltas = parse([text], form)
    if not any(isinstance(d, ToolStart | ThinkingDelta) for d in deltas):
        assume("<think>" not in text)
        assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == text
