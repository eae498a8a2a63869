"""How the models of a family think and call, told from the chat template and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply import deepseek, glm, llama
from alipes.gateway.text.reply.deltas import OutputParser
from alipes.gateway.text.reply.hermes import CLOSE, OPEN, hermes
from alipes.gateway.text.reply.qwen_xml import qwen_xml
from alipes.gateway.text.reply.source import FormParser, Reading, Source, Wait

Form = Callable[[Source, Sequence[Tool]], Reading]
Marks = tuple[str, str]

THINK: Final[Marks] = ("<think>", "</think>")
_MARKS: Final[tuple[Marks, ...]] = (
    THINK,
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
)


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """``marks`` are around what a model thinks. ``visible`` are control tokens that must be there
    in the text of a reply for its calls to be found. ``name`` is that of the form of calls."""

    name: str
    form: Form
    marks: Marks = THINK
    visible: frozenset[str] = frozenset()

    def opened(self, prompt: str) -> bool:
        """Whether a prompt ends where the model thinks already."""
        return prompt.rstrip().endswith(self.marks[0])

    def parser(
        self, tools: Sequence[Tool], opened: bool, new_id: Callable[[], str]
    ) -> OutputParser:
        """For one reply. Without tools what looks like a call is text."""

        def reply(source: Source) -> Reading:
            if (yield from _thought(source, self.marks, opened)):
                yield from self.form(source, tools) if tools else _said(source)

        return FormParser(reply, new_id)


def _hermes(source: Source, _: Sequence[Tool]) -> Reading:
    return hermes(source)


def _deepseek(source: Source, _: Sequence[Tool]) -> Reading:
    return deepseek.deepseek(source)


_FENCED: Final = "```json"
HERMES: Final = ReplyForm("hermes", _hermes)
_EXAMPLES: Final = {
    "hermes": """\
as one JSON object between tags:
<tool_call>
{"name": "function", "arguments": {"parameter": "value"}}
</tool_call>""",
    "deepseek": "between tags, the arguments as a JSON object:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    '{"parameter": "value"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    _FENCED: "between tags, the arguments as a JSON object in a fenced block:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>function\n"
    '```json\n{"parameter": "value"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "glm": """\
between tags:
<tool_call>function
<arg_key>parameter</arg_key>
<arg_value>value</arg_value>
</tool_call>""",
    "qwen-xml": """\
between tags:
<tool_call>
<function=function>
<parameter=parameter>
value
</parameter>
</function>
</tool_call>""",
    "llama": 'as one JSON object:\n{"name": "function", "parameters": {"parameter": "value"}}',
}
"""How to write a call in each form."""
_FORMS: Final = (
    (deepseek.CALLS, ReplyForm("deepseek", _deepseek, visible=deepseek.TAGS)),
    (glm.KEY, ReplyForm("glm", glm.glm, visible=glm.TAGS)),
    ("<function=", ReplyForm("qwen-xml", qwen_xml)),
    (llama.TAG, ReplyForm("llama", llama.llama, visible=frozenset((llama.TAG,)))),
)


def form_of(template: str, added: Collection[str], hermes: bool = False) -> ReplyForm:
    """``template`` is the source of the chat template, ``added`` the texts of the tokenizer's added
    tokens. Without a sign of another form it is that of Hermes, as it is where models are told to
    call in it (``hermes``), and thinking is between tags."""
    form = HERMES if hermes else _called_in(template)
    if form is HERMES and llama.TAG in added and OPEN not in template and not hermes:
        form = _FORMS[-1][1]
    marks = next((pair for pair in _MARKS if pair[1] in template or set(pair) <= set(added)), THINK)
    tags = {OPEN, CLOSE, *marks, *form.visible}
    return ReplyForm(form.name, form.form, marks, frozenset(tags & set(added)))


def example_of(template: str) -> str:
    """A call in the form that a template shows calls in."""
    name = _called_in(template).name
    return _EXAMPLES[_FENCED if name == "deepseek" and _FENCED in template else name]


def _called_in(template: str) -> ReplyForm:
    return next((form for sign, form in _FORMS if sign in template), HERMES)


def _thought(source: Source, marks: Marks, opened: bool) -> Wait:
    """What the model thinks before it answers, if it does; returns whether anything follows."""
    opening, closing = marks
    blanks = yield from source.blanks()
    if not (yield from source.skip(opening)) and not opened:
        source.text = blanks + source.text
        return True
    yield from source.blanks()
    found, _ = yield from source.until(closing, emit=source.think, blanks=True)
    yield from source.blanks()
    return found is not None


def _said(source: Source) -> Reading:
    source.say(source.take(len(source.text)))
    while (yield from source.more()):
        source.say(source.take(len(source.text)))
