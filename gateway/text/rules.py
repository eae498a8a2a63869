"""What a reply is wished to be, how a model writes, and rules in Lark's language, as ``llguidance``
reads it.

Blanks in JSON are those that chat templates write, so that a reply which comes back in a later
prompt is the same text, and no model fills its reply with blanks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Schema = Mapping[str, Any]
Marks = tuple[str, str]
BLANKS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FREE: Final = r"/(.|\n)*/"
MEMBERS: Final = 500
"""The most that an object may name: with many more a matcher of grammars gives up midway."""
_SLASH: Final = re.compile(r"(\\.)|/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Freeform:
    """What the one text of a tool may be: ``definition`` in ``syntax`` (``lark``, ``regex``)."""

    syntax: str
    definition: str


@dataclass(frozen=True, slots=True)
class Function:
    """A tool under the name that the model knows; ``parameters`` is a JSON schema, of which what
    cannot be kept to is ignored unless it is ``strict``. A tool that has a ``freeform`` takes that
    text as its argument ``input``."""

    name: str
    parameters: Schema
    strict: bool = False
    freeform: Freeform | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """JSON of a schema; see ``Function`` for ``strict``."""

    schema: Schema
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What a reply must be: with ``must_call`` one or more calls of ``functions``, else such calls
    or the ``answer``, or a text with such calls where there is none. ``single``: one call at most.
    One that is not ``binding`` counts for nothing where a model has no way of saying it."""

    functions: tuple[Function, ...] = ()
    must_call: bool = False
    single: bool = False
    answer: Answer | None = None
    binding: bool = True


@dataclass(frozen=True, slots=True)
class Speech:
    """How a model writes: the name of its form of calls; the marks around what it thinks, if it
    does; whether the prompt has ``opened`` that already. ``tokens`` are its tokenizer's added ones,
    by their text: such a text is one token and never several."""

    form: str = "hermes"
    marks: Marks | None = None
    opened: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)


class Unspeakable(Exception):
    """A model's form has no way of saying what is wished; the message says what."""


class Rules:
    """A Lark grammar that grows by rules, and the grammars that it refers to."""

    def __init__(self, speech: Speech) -> None:
        self.speech: Final = speech
        self._rules: list[str] = []
        self._others: list[dict[str, Any]] = []

    def mark(self, text: str) -> str:
        """An expression for a mark, which may be a token."""
        token = self.speech.tokens.get(text)
        return literal(text) if token is None else f"<[{token}]>"

    def marked(self, text: str) -> str:
        """An expression for a text that may have marks in it."""
        parts, plain = [], ""
        while text:
            mark = next((mark for mark in self.speech.tokens if mark and text.startswith(mark)), "")
            if mark:
                parts += [literal(plain)] * bool(plain) + [self.mark(mark)]
                plain, text = "", text[len(mark) :]
            else:
                plain, text = plain + text[0], text[1:]
        return " ".join(parts + [literal(plain)] * bool(plain))

    def rule(self, body: str, attributes: str = "") -> str:
        """The name of a new rule."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def until(self, text: str) -> str:
        """An expression for any text up to the first ``text``, which is in it."""
        if text in self.speech.tokens:
            return f"{self.rule(FREE)} {self.mark(text)}"
        return self.rule(FREE, f"[suffix={literal(text)}]")

    def json(self, schema: Schema, strict: bool) -> str:
        """Raises ``Unspeakable``."""
        if (count := members_of(schema)) > MEMBERS:
            raise Unspeakable(f"cannot be made a grammar: {count} members; {MEMBERS} are the most")
        options = BLANKS | {"lenient": not strict, "coerce_one_of": True}
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def other(self, grammar: Mapping[str, Any]) -> str:
        """An expression for another grammar."""
        name = f"g{len(self._others)}"
        self._others.append({"name": name, **grammar})
        return f"@{name}"

    def free(self, freeform: Freeform) -> str:
        """An expression for a tool's text as it is."""
        if freeform.syntax == "regex":
            return self.rule(f"/{slashed(freeform.definition)}/")
        return self.other({"lark_grammar": freeform.definition})

    def grammar(self, start: str) -> str:
        lark = "\n".join([f"start: {start}", *self._rules, ""])
        return json.dumps({"grammars": [{"lark_grammar": lark}, *self._others]})


def slashed(regex: str) -> str:
    """As it stands between slashes in Lark: those within are escaped, if they are not."""
    return _SLASH.sub(lambda found: found[1] or r"\/", regex)


def members_of(schema: Any) -> int:
    """The most members that one object of a schema has."""
    if isinstance(schema, list):
        return max(map(members_of, schema), default=0)
    if not isinstance(schema, Mapping):
        return 0
    own = schema.get("properties")
    counted = len(own) if isinstance(own, Mapping) else 0
    return max(counted, max(map(members_of, schema.values()), default=0))


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
