"""Grammars of replies: JSON of a schema, calls of tools in the form that a model writes them in,
with what it thinks before."""

from __future__ import annotations

from typing import Final

from alipes.gateway.text.call_forms import calls, text_with_calls
from alipes.gateway.text.rules import Rules, Speech, Wish

_AFTER_THOUGHTS: Final = r"/[ \n]{0,4}/"


def grammar_of(wish: Wish, speech: Speech) -> str:
    """Raises ``Unspeakable``."""
    rules = Rules(speech)
    if wish.must_call:
        body = calls(wish.functions, wish.single, rules)
    elif wish.answer is not None:
        body = rules.json(wish.answer.schema, wish.answer.strict)
        if wish.functions:
            body += f" | {calls(wish.functions, wish.single, rules)}"
    else:
        body = text_with_calls(wish.functions, wish.single, rules)
    return rules.grammar(f"{_thoughts(rules)}({body})")


def _thoughts(rules: Rules) -> str:
    """An expression for what is thought before anything is said."""
    marks, opened = rules.speech.marks, rules.speech.opened
    if marks is None:
        return ""
    ended = f"{rules.until(marks[1])} {_AFTER_THOUGHTS}"
    if opened:
        return f"{ended} "
    return f"{rules.rule(f'{rules.mark(marks[0])} {ended}')}? "
