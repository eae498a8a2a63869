"""Grammars of replies accept what models write and parsers read, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.call_forms import object_schema
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.grammar import grammar_of
from alipes.gateway.text.loosened import OPEN, loosened
from alipes.gateway.text.model import ModelText
from alipes.gateway.text.quoted import quoted_lark
from alipes.gateway.text.reply.deltas import ToolArguments
from alipes.gateway.text.reply.family import HERMES, form_of
from alipes.gateway.text.rules import (
    Answer,
    Freeform,
    Function,
    Speech,
    Unspeakable,
    Wish,
)

THINK = ("<think>", "</think>")
MARKS = ["<tool_call>", "</tool_call>", *THINK]
PARAMETERS = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "s": {"type": "string"},
        "k": {"type": "string", "enum": ["é", "b"]},
        "l": {"$ref": "#/$defs/list"},
    },
    "required": ["x"],
    "$defs": {"list": {"type": "array", "items": {"type": "boolean"}}},
}
LOOK = Function("look", PARAMETERS)
SHUT = Function('sh"ut', {"properties": {}})
CALLED = '<tool_call>\n{"name": "look", "arguments": {"x": 1, "s": "a\\n<b"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "sh\\"ut", "arguments": {}}\n</tool_call>'
BOTH = Wish((LOOK, SHUT), must_call=True)
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
update_hunk: "*** Update File: " filename LF change+
filename: /(.+)/  // a comment "with quotes"
add_line: "+" /(.*)/ LF -> line
change: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""

SIGNS = {"qwen-xml": "<function=", "glm": "<arg_key>"}

Check = Callable[..., None]


class Reader:
    """Texts as tokens; with ``added`` marks are tokens of their own."""

    def __init__(self, folder: Path, added: bool) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if added:
            marks = [AddedToken(mark, normalized=False) for mark in MARKS]
            self.tokenizer.add_tokens(marks)
        found = self.tokenizer.get_added_tokens_decoder()
        self.tokens = {token.content: number for number, token in found.items()}
        self.known = LLTokenizer(self.tokenizer.to_str(), eos_token=[2])

    def __call__(self, wish: Wish, speech: dict[str, Any], *texts: tuple[str, bool]) -> None:
        grammar = grammar_of(wish, Speech(tokens=self.tokens, **speech))
        matcher = LLMatcher(self.known, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        for text, accepted in texts:
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            trial = matcher.deep_copy()
            taken = trial.try_consume_tokens(ids) == len(ids)
            assert (taken and trial.is_accepting()) == accepted, text


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tokens"])
def reader(request: pytest.FixtureRequest, smollm2_folder: Path) -> Reader:
    return Reader(smollm2_folder, request.param)


def test_forced_calls(reader: Reader) -> None:
    reader(
        BOTH,
        {},
        (CALLED, True),
        (OTHER, True),
        (f"{CALLED}\n{OTHER}\n{CALLED}", True),
        ("", False),
        ("Well. " + CALLED, False),
        (CALLED[:-1], False),
        (CALLED.replace("look", "lock"), False),
        (CALLED.replace('"x"', '"y"'), False),
        (CALLED.replace(": 1", ": 1.5"), False),
        (CALLED.replace("}}", ', "more": 1}}'), False),
        (CALLED + " bye", False),
        (f"<think>\n\n</think>\n\n{CALLED}", False),
    )
    reader(
        Wish((LOOK,), must_call=True, single=True),
        {},
        (CALLED, True),
        (f"{CALLED}\n{CALLED}", False),
    )


def test_forced_calls_after_thoughts(reader: Reader) -> None:
    reader(
        BOTH,
        {"marks": THINK},
        (CALLED, True),
        (f"<think>\nI could < or > it\n</think>\n\n{CALLED}", True),
        (f"<think>\nhm {CALLED}", False),
        ("<think>\nhm\n</think>\n\n", False),
    )
    reader(
        BOTH,
        {"marks": THINK, "opened": True},
        (f"hm\n</think>\n\n{CALLED}", True),
        (CALLED, False),
    )


def test_some_of_the_tools(reader: Reader) -> None:
    reader(
        Wish((LOOK,)),
        {},
        ("", True),
        ("It is {2 < 3}.\n\n", True),
        (CALLED, True),
        (f"So: {CALLED}\n{CALLED} and on", True),
        (OTHER, False),
        (f"So: {CALLED}\n{OTHER}", False),
        (CALLED[:-20], False),
    )


def test_json_answers(reader: Reader) -> None:
    any_object = Answer({"type": "object"})
    exact = Answer({**PARAMETERS, "additionalProperties": False}, strict=True)
    reader(
        Wish(answer=any_object),
        {},
        ('{"a": [1, {"b": null}]}', True),
        ("{}", True),
        ("[]", False),
        ("{} ", False),
        ('{"a":1}', False),
    )
    reader(
        Wish((LOOK,), answer=exact),
        {"marks": THINK},
        ('{"x": 1, "k": "é", "l": [true, false]}', True),
        ('<think>hm</think>\n{"x": 1}', True),
        (CALLED, True),
        (OTHER, False),
        ('{"k": "b"}', False),
    )


FORMS = {
    "llama": '{"name": "look", "parameters": {"x": 1, "s": "q"}}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
    '{"x": 1, "s": "q"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "qwen-xml": "<tool_call>\n<function=look>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\n"
    'q </p\n\n"\n</parameter>\n<parameter=k>\né\n</parameter>\n</function>\n</tool_call>',
    "glm": "<tool_call>look\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>s</arg_key>\n<arg_value>q <a\n</arg_value>\n</tool_call>",
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_calls(reader: Reader, form: str) -> None:
    said = FORMS[form]
    reader(
        Wish((LOOK,), must_call=True),
        {"form": form},
        (said, True),
        (said.replace("look", "lock"), False),
        (said.replace("1", "one", 1), False),
        (said[:-1], False),
    )


OPTIONAL = {
    "type": "object",
    "properties": {
        "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mode": {"enum": ["fast", None]},
        "kind": {"$ref": "#/$defs/kind"},
        "size": {"type": ["integer", "null"]},
    },
    "$defs": {"kind": {"enum": ["1", "2"]}},
}
WRITTEN = {
    "qwen-xml": "<tool_call>\n<function=f>\n<parameter={}>\n{}\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
}


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", "null", None),
        ("mode", "fast", "fast"),
        ("mode", "null", None),
        ("kind", "1", "1"),
        ("size", "12", 12),
        ("size", "null", None),
    ],
)
def test_bare_values_are_read_as_they_are_forced(
    reader: Reader, form: str, name: str, text: str, value: Any
) -> None:
    said = WRITTEN[form].format(name, text)
    other = (WRITTEN[form].format(name, '"q"'), name == "text")
    wish = Wish((Function("f", OPTIONAL),), must_call=True)
    reader(wish, {"form": form}, (said, True), other)
    sign = {"qwen-xml": "<function=", "glm": "<arg_key>"}[form]
    parser = form_of(sign, ()).parser((Tool("f", None, OPTIONAL),), False, lambda: "id")
    deltas = [*parser.push(said), *parser.finish()]
    assert json.loads(deltas[1].text) == {name: value}


def test_what_cannot_be_said() -> None:
    for form in ("none", "llama"):
        with pytest.raises(Unspeakable):
            grammar_of(Wish((LOOK,)), Speech(form=form))


PATCHES = [
    ('*** Begin Patch\n*** Add File: a/b.py\n+x = "a\\n"\n+\ty\n*** End Patch\n', True),
    ("*** Begin Patch\n*** Update File: ü\n-é\n+\u2028\n  z\n*** End Patch", True),
    ("*** Begin Patch\n*** Update File: a\n!x\n*** End Patch", False),
    ("*** Begin Patch\n*** End Patch\n", False),
    ("patch", False),
]


def calls_with(text: str) -> str:
    inner = json.dumps({"input": text}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "patch", "arguments": {inner}}}\n</tool_call>'


def test_texts_of_a_tool_within_json(reader: Reader) -> None:
    patch = Function("patch", {}, freeform=Freeform("lark", PATCH))
    wish = Wish((patch,), must_call=True)
    reader(wish, {}, *((calls_with(text), accepted) for text, accepted in PATCHES))
    expression = Function("patch", {}, freeform=Freeform("regex", r'[a-z"]+/\d{2,3}\n?"x\s.'))
    reader(
        Wish((expression,), must_call=True),
        {},
        (calls_with('ab"c/12\n"x q'), True),
        (calls_with('ab/123"x\t"'), True),
        (calls_with('ab/1"x q'), False),
        (calls_with('ab/12"xyq'), False),
        (calls_with('ab/12"x \n'), False),
    )


def test_texts_of_a_tool_as_they_are(reader: Reader) -> None:
    patch = Function("patch", {}, freeform=Freeform("lark", PATCH))

    def said(text: str) -> str:
        inner = f"<parameter=input>\n{text}\n</parameter>\n"
        return f"<tool_call>\n<function=patch>\n{inner}</function>\n</tool_call>"

    wish = Wish((patch,), must_call=True)
    reader(wish, {"form": "qwen-xml"}, *((said(text), accepted) for text, accepted in PATCHES))


@pytest.mark.parametrize("text", ["start: <tool>", "%ignore WS", '%json {"a": 1}', r"start: /a\b/"])
def test_texts_of_a_tool_that_cannot_be_quoted(text: str) -> None:
    with pytest.raises(Unspeakable):
        quoted_lark(text)


def test_a_model_makes_and_checks_grammars(smollm2_folder: Path) -> None:
    text = ModelText.load("s", smollm2_folder)

    async def made(wish: Wish) -> str:
        return await text.grammar(wish)

    assert asyncio.run(made(Wish((LOOK,), must_call=True)))
    wrong = {"type": "object", "properties": {"a": {"type": "frog"}}}
    large = {"properties": {f"p{i}": {"type": "string"} for i in range(700)}}
    for schema in (wrong, large, {"enum": ["a" * 600_000]}):
        assert asyncio.run(made(Wish((LOOK, Function("f", schema)), must_call=True)))
        assert asyncio.run(made(Wish(answer=Answer(schema))))
    for wish in (
        Wish((Function("wrong", wrong, strict=True),), must_call=True),
        Wish((Function("large", large, strict=True),), must_call=True),
        Wish(answer=Answer({"not": {}}, strict=True)),
        Wish((Function("big", {"enum": ["a" * 600_000]}, strict=True),), must_call=True),
        Wish((Function("f", {}, freeform=Freeform("lark", "start: nowhere")),), must_call=True),
    ):
        with pytest.raises(TextError) as caught:
            asyncio.run(made(wish))
        assert "\n" not in caught.value.message
    loose = Function("f", {}, freeform=Freeform("lark", "start: nowhere"))
    assert asyncio.run(made(Wish((loose,), binding=False))) == ""
    patch = Function("patch", {}, freeform=Freeform("regex", "[^/]+/"))
    assert asyncio.run(made(Wish((Function("f", wrong), patch), binding=False)))


def test_what_cannot_be_kept_to_is_ignored(reader: Reader) -> None:
    one = {"pattern": "^(?!foo).*$", "type": "string", "maximum": 2**64}
    given = {
        "$schema": "https://nowhere.test/x",
        "type": "object",
        "properties": {
            "a": one,
            "b": {"type": ["any", "integer"], "minimum": -(2**63)},
            "c": {"$ref": "#/$defs/c"},
            "d": {"$ref": "https://nowhere.test/d"},
            "e": None,
            "f": {"anyOf": [{"type": "file"}, {"enum": ["x"]}]},
            "g": {"type": "array", "items": one},
        },
        "required": ["a", "c"],
        "$defs": {"c": {"type": "boolean", "format": "f"}},
    }
    made = loosened(given)
    assert made == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer"},
            "c": {"$ref": "#/$defs/c"},
            "d": {},
            "e": {},
            "f": {"anyOf": [{}, {"enum": ["x"]}]},
            "g": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["a", "c"],
        "$defs": {"c": {"type": "boolean"}},
    }
    wish = Wish((Function("f", made),), must_call=True)
    assert not LLMatcher(reader.known, grammar_of(wish, Speech()), log_level=0).is_error()
    assert loosened({"type": "object", "properties": None, "required": None}) == OPEN


def test_an_object_that_needs_what_it_does_not_name_is_open() -> None:
    given = {"properties": {"x": {"type": "string"}}, "required": ["y"]}
    assert object_schema(given)["additionalProperties"] is True
    assert object_schema({**given, "required": ["x"]})["additionalProperties"] is False


@pytest.mark.parametrize("form", ["qwen-xml", "glm"])
def test_xml_calls_follow_a_schema_told_by_reference_and_open_ones(
    reader: Reader, form: str
) -> None:
    inner = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    by_reference = {"$ref": "#/$defs/A", "$defs": {"A": inner}}

    def taken(schema: dict[str, Any], *arguments: tuple[str, str]) -> bool:
        wish = Wish((Function("f", schema),), must_call=True, single=True)
        grammar = grammar_of(wish, Speech(form, tokens=reader.tokens))
        matcher = LLMatcher(reader.known, grammar, log_level=0)
        text = call_of(form, *arguments)
        ids = reader.tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    said = ("s", "123")
    for schema in (inner, by_reference, {"allOf": [inner]}):
        assert taken(schema, said)
        assert not taken(schema)
        tool = Tool("f", None, schema)
        parser = form_of(SIGNS[form], ()).parser([tool], False, lambda: "id")
        deltas = [*parser.push(call_of(form, said)), *parser.finish()]
        text = "".join(delta.text for delta in deltas if isinstance(delta, ToolArguments))
        assert json.loads(text) == {"s": "123"}
    assert taken({"type": "object", "additionalProperties": True}, said, ("t", "a < b"))
    assert taken({"type": "object"})
    assert not taken({"type": "object", "properties": {}}, said)


def call_of(form: str, *arguments: tuple[str, str]) -> str:
    if form == "glm":
        parts = [
            f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n"
            for name, value in arguments
        ]
        return f"<tool_call>f\n{''.join(parts)}</tool_call>"
    parts = [f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments]
    return f"<tool_call>\n<function=f>\n{''.join(parts)}</function>\n</tool_call>"


@pytest.mark.parametrize("regex", [r"^\/[a-z]+$", "^/[a-z]+$"])
@pytest.mark.parametrize("form", ["hermes", "qwen-xml"])
def test_slashes_of_an_expression_may_be_escaped(reader: Reader, form: str, regex: str) -> None:
    function = Function("f", {}, freeform=Freeform("regex", regex))
    grammar = grammar_of(Wish((function,), must_call=True), Speech(form))
    assert not LLMatcher(reader.known, grammar, log_level=0).is_error()


@pytest.mark.parametrize("value", ["ls\n", "ls", "", "a\n\nb", "<x>"])
def test_xml_values_end_where_readers_end_them(reader: Reader, value: str) -> None:
    function = Function("f", {"properties": {"s": {"type": "string"}}, "required": ["s"]})
    grammar = grammar_of(
        Wish((function,), must_call=True, single=True), Speech("qwen-xml", tokens=reader.tokens)
    )
    head = "<tool_call>\n<function=f>\n<parameter=s>\n"
    tail = "</parameter>\n</function>\n</tool_call>"
    for text, taken in ((head + value + tail, True), (f"{head}a</parameter>b\n{tail}", False)):
        matcher = LLMatcher(reader.known, grammar, log_level=0)
        ids = reader.tokenizer.encode(text, add_special_tokens=False).ids
        whole = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert whole == taken


def test_random_draws_are_read_as_calls(reader: Reader) -> None:
    """Whatever is drawn under a forced choice, the parser finds calls of tools in it."""
    narrow = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "s": {"type": "string", "maxLength": 5}},
        "required": ["x", "s"],
    }
    wish = Wish((Function("look", narrow),), must_call=True, single=True)
    grammar = grammar_of(wish, Speech(tokens=reader.tokens))
    start = LLMatcher(reader.known, grammar, log_level=0)
    for seed in range(20):
        rng, matcher, ids = np.random.default_rng(seed), start.deep_copy(), []
        while not matcher.is_stopped() and len(ids) < 400:
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            ids.append(int(rng.choice(np.flatnonzero(np.unpackbits(bits, bitorder="little")))))
            assert matcher.consume_token(ids[-1])
        if len(ids) == 400:
            continue  # an integer of many digits
        parser = HERMES.parser((Tool("f", None, {}),), False, lambda: "id")
        said = reader.tokenizer.decode(ids, skip_special_tokens=False)
        deltas = [*parser.push(said), *parser.finish()]
        kinds = [type(delta).__name__ for delta in deltas]
        assert kinds == ["ToolStart", "ToolArguments", "ToolEnd"]
        assert set(json.loads(deltas[1].text)) == {"x", "s"}
