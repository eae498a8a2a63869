"""Chat templates: Jinja in a sandbox, with the helpers that published templates rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from alipes.gateway.conversation.message import Message, Tool, shown_tool
from alipes.gateway.text.abilities import abilities_of, adapted
from alipes.gateway.text.call_shape import CallShape, call_shape_of
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.literal import SIGN
from alipes.gateway.text.reply.family import example_of
from alipes.gateway.text.told_tools import offers_tools, told

_ESCAPED_SIGN = json.dumps(SIGN)[1:-1]
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """One model's template. ``source`` is empty where the model has none. With ``tells_tools``
    what is offered is told in messages, as the template does not show it; with ``tells_calls`` so
    are calls and results, in the form of Hermes."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        self.source = source
        self._special = special
        self._template = _environment().from_string(source)
        shape = call_shape_of(lambda messages, shape: self._rendered(messages, shape=shape))
        self._shape = shape or CallShape()
        self.tells_tools = bool(source) and not offers_tools(self._rendered)
        self.tells_calls = self.tells_tools and shape is None
        self._example = example_of("" if self.tells_calls else source)
        self._able = abilities_of(self._rendered)

    @staticmethod
    def load(folder: Path) -> ChatTemplate:
        """Reads ``chat_template.jinja``, else the template in ``tokenizer_config.json``."""
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_bytes()) if path.is_file() else {}
        file = folder / "chat_template.jinja"
        source = file.read_text() if file.is_file() else _embedded(settings.get("chat_template"))
        special = {name: _token(settings[name]) for name in _SPECIAL if settings.get(name)}
        return ChatTemplate(source, special)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], speaks: bool = True
    ) -> str:
        """The prompt's text, up to where the assistant ``speaks``, or to the end of the last
        message. Raises ``TextError``."""
        if not self.source:
            raise TextError("model", "has no chat template; use /v1/completions")
        if self.tells_tools:
            messages = told(messages, tools, self._example, calls=not self.tells_calls)
            tools = ()
        return self._rendered(adapted(messages, self._able), tools, speaks)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        speaks: bool = True,
        shape: CallShape | None = None,
    ) -> str:
        try:
            return self._template.render(
                messages=(shape or self._shape).messages(messages),
                tools=list(map(shown_tool, tools)) or None,
                add_generation_prompt=speaks,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise TextError("messages", f"the model's chat template refused: {error}") from None


def _embedded(template: Any) -> str:
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    return template or ""


def _token(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


class _Generation(Extension):
    """Accepts the ``generation`` block that marks assistant text for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return text.replace(_ESCAPED_SIGN, SIGN) if ensure_ascii else text


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
