"""A grammar of a text as the grammar of that text inside a JSON string.

A tool that takes a text gets it as the string of a JSON object, where quotes, backslashes and
control characters are written with a backslash. So every literal and every regular expression of
the text's grammar is rewritten; the rules that put them together stay as they are. Expressions
become rules over single characters and runs of plain ones: a lexer that does not go back could not
tell by the backslash alone whether what follows is still of an expression. For the same reason
terminals become rules. What is accepted is of the text's grammar; where literals and expressions
overlap, some texts that are may be left out.
"""

from __future__ import annotations

import json
import re
from typing import Final

from alipes.gateway.text.reply.source import quoted
from alipes.gateway.text.rules import Freeform, Rules, Unspeakable, literal, slashed

_SHORT: Final = ('"', "\\", "\n", "\t", "\r", "\b", "\f")
"""Characters that JSON escapes."""
_PLAIN_ONLY: Final = r"[\"\\\x00-\x1f\x7f]"
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_PIECE: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[a-z-]*:|P?<\w+>))?|\{[0-9,]*\}\??|[*+?]\??|.",
    re.DOTALL,
)
_COMMON: Final = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(\r?\n)+",
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?",
    "NUMBER": r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "LETTER": r"[A-Za-z]",
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
}
_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_LARK: Final = re.compile(
    rf"""(?P<comment>//[^\n]*)
    | (?P<range>{_STRING}\s*\.\.\s*{_STRING})
    | (?P<string>{_STRING})(?P<fold>i?)
    | /(?P<regex>(?:[^/\\\n]|\\.)+)/(?P<flags>[a-z]*)
    | %import\s+common\.(?P<common>\w+)(?:\s*->\s*(?P<alias>\w+))?
    | %import\s+common\s*\((?P<several>[^)]*)\)
    | (?P<terminal>\b[A-Z_][A-Z0-9_]*\b)(?:\.[0-9]+(?=\s*:))?
    | (?P<refused>%\w+|<[^>\s]*>|@\w+)""",
    re.VERBOSE,
)


def quoted_text(freeform: Freeform, rules: Rules) -> str:
    """An expression for a JSON string, quotes included. Raises ``Unspeakable``."""
    if freeform.syntax == "regex":
        inner = rules.rule(quoted_regex(freeform.definition))
    elif freeform.syntax == "lark":
        inner = rules.other({"lark_grammar": quoted_lark(freeform.definition)})
    else:
        raise Unspeakable(f"{freeform.syntax[:64]!r} is not 'lark' or 'regex'")
    quote = literal('"')
    return f"{quote} {inner} {quote}"


def quoted_lark(definition: str) -> str:
    """Raises ``Unspeakable`` for what only grammars of whole replies may have."""
    return _LARK.sub(_quoted_part, definition)


def _quoted_part(part: re.Match[str]) -> str:
    if part["refused"]:
        raise Unspeakable(f"{part['refused'][:64]!r} cannot be part of a tool's grammar")
    if part["comment"]:
        return ""
    if part["terminal"]:
        return _rule_name(part["terminal"])
    if part["range"]:
        first, last = map(_text, re.findall(_STRING, part["range"]))
        return _class(f"[{re.escape(first)}-{re.escape(last)}]", "", False)
    if part["string"]:
        return literal(quoted(_text(part["string"]))) + part["fold"]
    if part["regex"]:
        return quoted_regex(part["regex"], part["flags"])
    if part["common"]:
        return _common(part["common"], part["alias"])
    return "\n".join(_common(name.strip(), None) for name in part["several"].split(","))


def _rule_name(terminal: str) -> str:
    return f"t_{terminal.lower()}"


def _common(name: str, alias: str | None) -> str:
    if name not in _COMMON:
        raise Unspeakable(f"common.{name[:64]} is not known here")
    return f"{_rule_name(alias or name)}: {quoted_regex(_COMMON[name])}"


def _text(string: str) -> str:
    try:
        return str(json.loads(string))
    except ValueError:
        raise Unspeakable(f"{string[:64]} is not a string that can be read") from None


def quoted_regex(pattern: str, flags: str = "") -> str:
    """A Lark expression."""
    fold = "i" if "i" in flags else ""
    dot = r"[\s\S]" if "s" in flags or re.search(r"\(\?[a-z]*s", pattern) else r"[^\n]"
    pieces = _PIECE.findall(pattern)
    made = [
        _piece(dot if piece == "." else piece, fold, following[:1] in ("*", "+"))
        for piece, following in zip(pieces, [*pieces[1:], ""], strict=True)
    ]
    return f"({' '.join(made)})"


def _piece(piece: str, fold: str, repeated: bool) -> str:
    """What stands for a piece of an expression; ``repeated`` is one that may stand any number of
    times."""
    if piece[0] == "[" and len(piece) > 1:
        return _class(piece, fold, repeated)
    if piece[0] == "(":
        return "("
    if piece[0] in "*+?{)|":
        return piece[:-1] if piece[0] in "*+?{" and piece[1:].endswith("?") else piece
    if piece[0] == "\\" and piece[1] in "sSdDwW":
        return _class(f"[{piece}]", fold, repeated)
    if piece[0] == "\\" and piece[1].isalnum() and piece[1] not in _CONTROL:
        raise Unspeakable(f"{piece} in an expression cannot be part of a tool's grammar")
    if piece in "^$":
        return literal("")
    character = piece if piece[0] != "\\" else _CONTROL.get(piece[1], piece[1])
    return literal(quoted(character)) + fold


def _class(piece: str, fold: str, repeated: bool) -> str:
    """A class of characters: those that stand for themselves, several of them at once where it is
    ``repeated``, and the others as they are escaped."""
    try:
        inside = re.compile(piece)
    except re.error as error:
        raise Unspeakable(f"{piece[:64]} is not a class of characters: {error}") from None
    escapes = [literal(quoted(each)) for each in _SHORT if inside.fullmatch(each)]
    plain = slashed(f"[{piece}--{_PLAIN_ONLY}]")
    run = f"/{plain}{'+' * repeated}/{fold}"
    return f"({' | '.join([run, *escapes])})"
