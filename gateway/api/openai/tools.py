"""Tools of the OpenAI dialect."""

from __future__ import annotations

from typing import Any

from alipes.gateway.api.errors import invalid


def function_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools as the client wrote them, None for none; raises a 400 for one that is not a
    function with a name."""
    for i, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            raise invalid(f"tools[{i}].type", "only 'function' is supported", "unsupported")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{i}].function.name", "is required")
    return tools or None
