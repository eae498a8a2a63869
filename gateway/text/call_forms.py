"""Calls of tools as expressions of a grammar, in the form that a family of models writes them in.

A form is a function of a tool and the rules: what follows the mark that begins a call, to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from alipes.gateway.text.quoted import quoted_text
from alipes.gateway.text.reply import deepseek as deepseek_tags
from alipes.gateway.text.reply import glm as glm_tags
from alipes.gateway.text.reply.hermes import CLOSE, OPEN
from alipes.gateway.text.reply.values import choices, kinds, members_in
from alipes.gateway.text.rules import FREE, Function, Rules, Schema, Unspeakable, literal

_KEY: Final = r"/[^<>\n]+/"
"""The name of an argument that no schema has."""
Call = Callable[[Function, Rules], str]


@dataclass(frozen=True, slots=True)
class CallForm:
    """``opening`` begins every call (after ``before``, once for all calls of a reply) and is empty
    where nothing tells a call from text; calls are ``between`` apart and ``after`` ends them."""

    opening: str
    call: Call
    between: str = "\n"
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a value ends: the mark, and what is written before and after it."""

    before: str
    mark: str
    after: str


def calls(functions: Sequence[Function], single: bool, rules: Rules) -> str:
    """One call or, unless ``single``, several."""
    form = form_of(rules)
    call = rules.rule(f"{_mark(form.opening, rules)} ({_choice(form, functions, rules)})")
    more = "" if single else f" ({_optional(form.between, rules)} {call})*"
    before, after = (_optional(text, rules) for text in (form.before, form.after))
    return f"{before} {call}{more} {after}"


def text_with_calls(functions: Sequence[Function], single: bool, rules: Rules) -> str:
    """Any text, in which what begins a call is one of these functions. Raises ``Unspeakable``."""
    form = form_of(rules)
    if not form.opening or form.before:
        raise Unspeakable("this model's calls cannot be told from text while they are written")
    call = rules.rule(f"{rules.until(form.opening)} ({_choice(form, functions, rules)})")
    return f"{call}{'?' if single else '*'} {rules.rule(FREE)}"


def form_of(rules: Rules) -> CallForm:
    """Raises ``Unspeakable``."""
    form = FORMS.get(rules.speech.form)
    if form is None:
        raise Unspeakable(f"calls in the form {rules.speech.form!r} cannot be forced")
    return form


def _choice(form: CallForm, functions: Sequence[Function], rules: Rules) -> str:
    return " | ".join(rules.rule(form.call(function, rules)) for function in functions)


def _mark(text: str, rules: Rules) -> str:
    return rules.mark(text) if text else ""


def _optional(text: str, rules: Rules) -> str:
    return rules.marked(text) if text else ""


# --- forms of calls ----------------------------------------------------------------------------


def hermes(function: Function, rules: Rules) -> str:
    """``<tool_call>``, a JSON object on a line of its own, ``</tool_call>``."""
    head = literal(f'\n{{"name": {literal(function.name)}, "arguments": ')
    tail = literal("}\n")
    return f"{head} {arguments(function, rules)} {tail} {rules.mark(CLOSE)}"


def llama(function: Function, rules: Rules) -> str:
    """A JSON object with ``name`` and ``parameters``, without marks."""
    head = literal(f'{{"name": {literal(function.name)}, "parameters": ')
    return f"{head} {arguments(function, rules)} {literal('}')}"


def deepseek(function: Function, rules: Rules) -> str:
    """The name, a mark, a JSON object, a mark, as V3.1 writes them."""
    head = f"{literal(function.name)} {rules.mark(deepseek_tags.SEPARATOR)}"
    return f"{head} {arguments(function, rules)} {rules.mark(deepseek_tags.CALL_END)}"


def qwen_xml(function: Function, rules: Rules) -> str:
    """``<function=NAME>`` and each parameter between tags, values on lines of their own."""
    parts = [literal(f"\n<function={function.name}>\n")]
    for name, schema, needed in members(function):
        value = _value(function, schema, Ending("\n", "</parameter>", "\n"), rules)
        given = rules.rule(f"{literal(f'<parameter={name}>{chr(10)}')} {value}")
        parts.append(given if needed else f"{given}?")
    if is_open(function):
        key = f"{literal('<parameter=')} {_KEY} {literal('>' + chr(10))}"
        parts.append(f"({key} {rules.until('</parameter>')} {literal(chr(10))})*")
    return " ".join([*parts, literal("</function>\n"), rules.mark(CLOSE)])


def glm(function: Function, rules: Rules) -> str:
    """The name, and of each argument key and value between tags."""
    parts = [literal(f"{function.name}\n")]
    for name, schema, needed in members(function):
        key = f"{rules.mark(glm_tags.KEY)} {literal(name)} {rules.mark(glm_tags.KEY_END)}"
        opened = f"{literal(chr(10))} {rules.mark(glm_tags.VALUE)}"
        value = _value(function, schema, Ending("", glm_tags.VALUE_END, "\n"), rules)
        given = rules.rule(f"{key} {opened} {value}")
        parts.append(given if needed else f"{given}?")
    if is_open(function):
        key = f"{rules.mark(glm_tags.KEY)} {_KEY} {rules.mark(glm_tags.KEY_END)}"
        value = f"{rules.mark(glm_tags.VALUE)} {rules.until(glm_tags.VALUE_END)}"
        parts.append(f"({key} {literal(chr(10))} {value} {literal(chr(10))})*")
    return " ".join([*parts, rules.mark(CLOSE)])


FORMS: Final[Mapping[str, CallForm]] = {
    "hermes": CallForm(OPEN, hermes),
    "llama": CallForm("", llama, between="; "),
    "deepseek": CallForm(
        deepseek_tags.CALL,
        deepseek,
        between="",
        before=deepseek_tags.CALLS,
        after=deepseek_tags.CALLS_END,
    ),
    "qwen-xml": CallForm(OPEN, qwen_xml),
    "glm": CallForm(OPEN, glm),
}


# --- arguments ---------------------------------------------------------------------------------


def arguments(function: Function, rules: Rules) -> str:
    """All of them as one JSON object."""
    if function.freeform is not None:
        text = quoted_text(function.freeform, rules)
        return f"{literal('{' + literal('input') + ': ')} {text} {literal('}')}"
    return rules.json(object_schema(function.parameters), function.strict)


def object_schema(parameters: Schema) -> dict[str, Any]:
    """The schema of an object. One that names its members has no others, unless it says so:
    tools refuse what they do not know, and a model could go on making it up."""
    schema = {"type": "object", **parameters}
    open_ended = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}
    named, needed = schema.get("properties"), schema.get("required")
    if isinstance(named, dict) and not open_ended & schema.keys():
        # One that needs what it does not name is open, or it could not be.
        others = [n for n in needed if n not in named] if isinstance(needed, list) else []
        schema["additionalProperties"] = bool(others)
    return schema


def is_open(function: Function) -> bool:
    """Whether a tool takes arguments that its schema does not name, as it names none."""
    closed = function.parameters.get("additionalProperties") is False
    named = members_in(function.parameters).schemas
    return function.freeform is None and named is None and not closed


def members(function: Function) -> Iterator[tuple[str, Schema, bool]]:
    """Name and schema of every argument, and whether it is required."""
    if function.freeform is not None:
        yield "input", {}, True
        return
    inner = {
        key: function.parameters[key]
        for key in ("$defs", "definitions")
        if key in function.parameters
    }
    named = members_in(function.parameters)
    for name, schema in (named.schemas or {}).items():
        own = schema if isinstance(schema, dict) else {}
        yield name, {**inner, **own}, name in named.needed


def _value(function: Function, schema: Schema, end: Ending, rules: Rules) -> str:
    """A value up to and with its end: what may be a string as it is, anything else as JSON, just
    as ``reply`` reads it."""
    closing = f"{_optional(end.before, rules)} {rules.mark(end.mark)} {_optional(end.after, rules)}"
    if function.freeform is not None:
        return f"{rules.free(function.freeform)} {closing}"
    if "string" not in kinds(schema, schema):
        return f"{rules.json(schema, function.strict)} {closing}"
    if (texts := choices(schema, schema)) is not None:
        return f"({' | '.join(map(literal, texts))}) {closing}"
    # Any text takes what comes before the mark as well; a reader ends the value there too.
    return f"{rules.until(end.mark)} {_optional(end.after, rules)}"
