"""The response object: what was asked, what came of it."""

from __future__ import annotations

from alipes.gateway.api.errors import OVERFLOW, ApiError, ErrorClass
from alipes.gateway.api.generation import Usage
from alipes.gateway.api.openai.responses.output import Object, Output
from alipes.gateway.api.openai.responses.prompt import Tools
from alipes.gateway.api.openai.responses.schema import ResponsesBody


def begun(response_id: str, created: int, body: ResponsesBody, tools: Tools, limit: int) -> Object:
    """The object while nothing is known of the answer. It tells what is in force, not what was
    wished: of tools those that the model sees, nothing is truncated or reasoned about."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": limit,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": body.format or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": tools.used,
        "top_p": body.top_p or 1.0,
        "truncation": "disabled",
        "usage": None,
    }


def ended(response: Object, output: Output, usage: Usage, now: int) -> Object:
    """The same object when the answer is there, whole or up to the limit."""
    told = {**response, "output": output.items, "usage": usage_object(usage)}
    if output.finish is not None and output.finish.reason == "length":
        details = {"reason": "max_output_tokens"}
        return {**told, "status": "incomplete", "incomplete_details": details}
    return {**told, "status": "completed", "completed_at": now}


def failed(response: Object, output: list[Object], error: ApiError) -> Object:
    """The same object when there will be no answer. The dialect has few codes; one that says
    that trying again may help must not be used for anything else."""
    code = error.code if error.code == OVERFLOW else _CODES.get(error.kind, "server_error")
    shown = {"code": code, "message": error.message}
    return {**response, "status": "failed", "output": output, "error": shown}


def usage_object(usage: Usage) -> Object:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "restored_tokens": usage.restored,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


_CODES = {ErrorClass.INVALID: "invalid_prompt", ErrorClass.RATE_LIMIT: "rate_limit_exceeded"}
