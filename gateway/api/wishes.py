"""What a body wants of the form of its answer, in all dialects: which tools may or must be called,
and JSON in place of text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from alipes.gateway.api.errors import invalid
from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.rules import Answer, Freeform, Function, Wish

_SHOWN: Final = 64
_NONE: Final[Mapping[str, str]] = {}


class Mode(StrEnum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether tools may or must be called; those of ``names`` alone where it is not None. With
    ``single`` a call that must be is the only one. ``field`` is where the body says so."""

    mode: Mode = Mode.AUTO
    names: tuple[str, ...] | None = None
    single: bool = False
    field: str = "tool_choice"


@dataclass(frozen=True, slots=True)
class Wished:
    """A wish that the model's grammar is made of, and the field at fault where there is none."""

    wish: Wish
    field: str


def openai_choice(choice: Any, parallel: bool | None = None) -> Choice:
    """``tool_choice`` of Chat Completions or Responses, and ``parallel_tool_calls``. Raises a 400
    that names the field."""
    single = parallel is False
    if choice is None:
        return Choice(single=single)
    if isinstance(choice, str):
        if choice not in tuple(Mode):
            modes = ", ".join(Mode)
            raise invalid("tool_choice", f"{choice[:_SHOWN]!r} is none of {modes}")
        return Choice(Mode(choice), single=single)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        return Choice(Mode.REQUIRED, (_name(choice, "tool_choice"),), True)
    if not isinstance(kind, str):
        raise invalid("tool_choice.type", "is required")
    if kind != "allowed_tools":
        return Choice(Mode.REQUIRED, (kind,), True, "tool_choice.type")
    place, allowed = "tool_choice", choice
    if isinstance(choice.get("allowed_tools"), dict):
        place, allowed = "tool_choice.allowed_tools", choice["allowed_tools"]
    if allowed.get("mode", "auto") not in (Mode.AUTO, Mode.REQUIRED):
        raise invalid(f"{place}.mode", "is neither 'auto' nor 'required'")
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not tools:
        raise invalid(f"{place}.tools", "name at least one tool")
    names = tuple(_name(tool, f"{place}.tools[{i}]") for i, tool in enumerate(tools))
    return Choice(Mode(allowed.get("mode", "auto")), names, single, f"{place}.tools")


def anthropic_choice(kind: str, name: str | None, single: bool) -> Choice:
    """``tool_choice`` of Messages. Raises a 400 that names the field."""
    if kind == "tool":
        if not name:
            raise invalid("tool_choice.name", "is required")
        return Choice(Mode.REQUIRED, (name,), single, "tool_choice.name")
    modes = {"auto": Mode.AUTO, "none": Mode.NONE, "any": Mode.REQUIRED}
    if kind not in modes:
        raise invalid("tool_choice.type", f"{kind[:_SHOWN]!r} is none of auto, any, tool, none")
    return Choice(modes[kind], single=single)


def json_answer(form: Any, field: str) -> Answer | None:
    """Of ``response_format``, ``text.format`` and the like; None for a text. Raises a 400."""
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Answer({"type": "object"})
    if kind != "json_schema":
        shown = str(kind)[:_SHOWN]
        raise invalid(f"{field}.type", f"{shown!r} is none of text, json_object, json_schema")
    inner = form.get("json_schema", form)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise invalid(schema_field(form, field), "is not a schema")
    return Answer(schema, inner.get("strict") is True)


def schema_field(form: Any, field: str) -> str:
    """Where a format has its schema."""
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return field
    return f"{field}.json_schema.schema" if "json_schema" in form else f"{field}.schema"


def functions_of(tools: Sequence[Tool]) -> tuple[Function, ...]:
    """As grammars take them."""
    return tuple(map(_function, tools))


def wished(
    choice: Choice,
    functions: Sequence[Function],
    answer: Answer | None = None,
    answer_field: str = "",
    aliases: Mapping[str, str] = _NONE,
    hosted: Collection[str] = (),
) -> Wished | None:
    """What is to be made a grammar; None where all that a model may say is allowed. ``aliases``
    lead from names that clients have for tools to those that models have; ``hosted`` are the
    offered tools that nothing here runs. Raises a 400 for a tool that is not offered."""
    choice = _among_those_here(choice, functions, hosted)
    if choice.mode is Mode.NONE:
        functions = ()
    allowed = _allowed(choice, functions, aliases)
    if choice.mode is Mode.REQUIRED:
        if not allowed:
            raise invalid(choice.field, "needs tools that can be called")
        return Wished(Wish(allowed, must_call=True, single=choice.single), "tools")
    if answer is not None:
        return Wished(Wish(allowed, single=choice.single, answer=answer), answer_field)
    if len(allowed) < len(functions):
        return Wished(Wish(allowed, single=choice.single), choice.field)
    if any(function.freeform is not None for function in allowed):
        return Wished(Wish(allowed, binding=False), "tools")
    return None


def _among_those_here(
    choice: Choice, functions: Sequence[Function], hosted: Collection[str]
) -> Choice:
    """The choice without tools that the model does not see: if it is to call one of these, it is
    free to say what it knows."""
    if choice.names is None:
        must = choice.mode is Mode.REQUIRED and hosted and not functions
        return Choice(single=choice.single) if must else choice
    names = tuple(name for name in choice.names if name not in hosted)
    return replace(choice, names=names) if names else Choice(single=choice.single)


def _allowed(
    choice: Choice, functions: Sequence[Function], aliases: Mapping[str, str]
) -> tuple[Function, ...]:
    if choice.names is None or choice.mode is Mode.NONE:
        return tuple(functions)
    by_name = {function.name: function for function in functions}
    names = [name if name in by_name else aliases.get(name, name) for name in choice.names]
    for name in names:
        if name not in by_name:
            raise invalid(choice.field, f"{name[:_SHOWN]!r} is not one of the tools offered")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _function(tool: Tool) -> Function:
    form = Freeform(tool.syntax, tool.definition) if tool.definition else None
    return Function(tool.name, tool.parameters, tool.strict, form)


def _name(choice: Any, place: str) -> str:
    """``{type, name}``, or ``{type, TYPE: {name}}``; of a tool that has no name its type."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind not in ("function", "custom"):
        return kind
    inner = choice.get(kind, choice) if isinstance(kind, str) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        nested = isinstance(choice, dict) and isinstance(kind, str) and kind in choice
        raise invalid(f"{place}.{kind}.name" if nested else f"{place}.name", "is required")
    return name
