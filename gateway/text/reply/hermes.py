"""Tool calls in the Hermes form, which Qwen models use as well: ``<tool_call>``, one JSON object
with ``name`` and ``arguments``, ``</tool_call>``."""

from __future__ import annotations

from typing import Final

from alipes.gateway.text.reply.json_call import json_call
from alipes.gateway.text.reply.source import Reading, Source
from alipes.gateway.text.reply.tagged import tagged

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def hermes(source: Source) -> Reading:
    return tagged(source, (OPEN,), CLOSE, lambda inner, _: json_call(inner))
