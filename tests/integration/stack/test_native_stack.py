"""`alipes serve` with the native engine: one hot instance, one cold one in three models' rounds."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from alipes.cli.main import app

FILE = """
models:
  llama: {{source: {{random: {{family: llama, size: tiny}}}}, dtype: float32}}
  qwen3: {{source: {{random: {{family: qwen3, size: tiny}}}}, dtype: float32}}
  qwen3-moe: {{source: {{random: {{family: qwen3-moe, size: tiny}}}}, dtype: float32}}
instances:
  hot-0: {{pool: hot, models: [llama], device_bytes: 128MiB, host_bytes: 128MiB}}
  cold-0:
    pool: cold
    models: [llama, qwen3, qwen3-moe]
    device_bytes: 160MiB
    host_bytes: 256MiB
    prefill_chunk: 256
targets: {{ttft: 2.0, tpot: 0.2}}
gateway: {{port: {port}, endpoint: "{endpoint}", allow_forced_tokens: true}}
"""
MODELS = ("llama", "qwen3", "qwen3-moe")
WORDS = "the model reads a file and finds a fault in the parser that nobody had seen before "


@pytest.fixture(scope="module")
def native(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    stop: Callable[..., None],
) -> Iterator[Any]:
    running = start(tmp_path_factory.mktemp("native"), FILE)
    try:
        yield running
        stop(running)
    finally:
        running.discard()


@pytest.fixture(scope="module")
def tokenizer(tiny_folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_folders["llama"] / "tokenizer.json"))


def gather(url: str, bodies: list[tuple[str, dict[str, Any]]]) -> list[httpx.Response]:
    """Post all at once; the answers in order."""

    async def post_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:
            return await asyncio.gather(*(client.post(path, json=b) for path, b in bodies))

    return asyncio.run(post_all())


def check_greedy(folder: Path, prompt: list[int], reply: list[str], tokenizer: Tokenizer) -> None:
    """``reply`` (the pieces of the drawn tokens) is what transformers draws, or differs first
    where the two best logits are less than 1e-3 apart."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    drawn = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=len(reply),
        min_new_tokens=len(reply),
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = drawn.sequences[0, len(prompt) :].tolist()
    for token, logits, piece in zip(ids, drawn.logits, reply, strict=True):
        if tokenizer.decode([token], skip_special_tokens=False) != piece:
            best = logits[0].topk(2).values
            assert float(best[0] - best[1]) < 1e-3
            return


def test_memory_is_divided_as_it_was_planned(native: Any) -> None:
    file = str(native.log.parent / "alipes.yaml")

    def ask(command: str) -> Any:
        result = CliRunner().invoke(app, [command, "-c", file, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    planned = {instance["name"]: instance["memory"] for instance in ask("check")["instances"]}
    running = ask("inspect")
    assert {instance["name"] for instance in running} == set(planned) == {"hot-0", "cold-0"}
    for instance in running:
        memory = instance["memory"]
        assert (memory.pop("backend"), memory.pop("switching")) != ("", "")
        expected = planned[instance["name"]]
        assert memory == {key: expected[key] for key in memory}
        assert instance["kernels"]["linear"] == "cpu"
    metrics = httpx.get(f"{native.url}/metrics").text
    line = 'alipes_instance_kernel_info{instance="cold-0",operation="linear",variant="cpu"} 1.0'
    assert line in metrics.splitlines()


def test_greedy_is_transformers_while_models_take_turns(
    native: Any, tiny_folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    before = native.instances()["cold-0"]["snapshot"]["counters"]
    prompts = {m: tokenizer.encode(WORDS * (20 + 10 * i)).ids for i, m in enumerate(MODELS)}
    # 900 tokens decode over many rounds, so all three are saved and resumed; llama's also has
    # to run on the cold instance now and then, as the hot one is kept busy by the first eight.
    bodies = [
        (
            "/v1/completions",
            {
                "model": model,
                "prompt": prompts[model],
                "max_tokens": 300,
                "temperature": 0,
                "logprobs": 0,
                "ignore_eos": True,
            },
        )
        for model in ("qwen3", "qwen3-moe", "llama")
        for _ in range(3)
    ]
    answers = gather(native.url, bodies)
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    native.until_idle()
    after = native.instances()["cold-0"]["snapshot"]["counters"]
    assert after["switches"] > before["switches"] + 2
    assert after["resumed"] > before["resumed"]
    for (_, body), answer in zip(bodies[::3], answers[::3], strict=True):
        pieces = answer.json()["choices"][0]["logprobs"]["tokens"]
        assert len(pieces) == 300
        model = body["model"]
        check_greedy(tiny_folders[model], prompts[model], pieces[:64], tokenizer)
    for first, *others in zip(*[iter(answers)] * 3, strict=True):
        for other in others:
            assert other.json()["choices"][0]["text"] == first.json()["choices"][0]["text"]


def test_64_mixed_calls_all_end_and_give_everything_back(native: Any) -> None:
    kinds = itertools.cycle(["chat", "text", "messages"])
    bodies: list[tuple[str, dict[str, Any]]] = []
    for index, kind in zip(range(64), kinds, strict=False):
        model = MODELS[index % 3 if index % 2 else (index // 2) % 3]
        # One prompt is longer than what a round of these targets can prefill at once.
        words = WORDS * (400 if index == 5 else 1 + index % 17)
        common = {"model": model, "max_tokens": 4 + index % 40, "stream": index % 4 == 0}
        if kind == "text":
            bodies.append(("/v1/completions", common | {"prompt": words}))
        else:
            path = "/v1/chat/completions" if kind == "chat" else "/v1/messages"
            bodies.append((path, common | {"messages": [{"role": "user", "content": words}]}))
    answers = gather(native.url, bodies)
    assert [a.status_code for a in answers] == [200] * 64, [
        a.text for a in answers if a.status_code != 200
    ]
    assert all('"error":' not in answer.text for answer in answers)
    native.until_idle()
    for shown in native.instances().values():
        occupancy = shown["snapshot"]["occupancy"]
        assert occupancy["held"] == 0
        assert occupancy["free"] + occupancy["cached"] == occupancy["total"]
        assert occupancy["host_held"] == 0


def test_no_model_is_starved_by_a_steady_stream_of_another(native: Any) -> None:
    """While qwen3 always has work, a call of qwen3-moe is served within a few rounds' bound."""

    async def main() -> float:
        async with httpx.AsyncClient(base_url=native.url, timeout=120) as client:

            async def steady(stop: asyncio.Event) -> None:
                while not stop.is_set():
                    body = {"model": "qwen3", "prompt": WORDS * 40, "max_tokens": 40}
                    (await client.post("/v1/completions", json=body)).raise_for_status()

            stop = asyncio.Event()
            streams = [asyncio.create_task(steady(stop)) for _ in range(6)]
            await asyncio.sleep(1)
            began = time.monotonic()
            body = {"model": "qwen3-moe", "prompt": WORDS, "max_tokens": 1}
            (await client.post("/v1/completions", json=body)).raise_for_status()
            waited = time.monotonic() - began
            stop.set()
            await asyncio.gather(*streams)
            return waited

    assert asyncio.run(main()) < 10
    native.until_idle()


def test_cached_prefix_is_reported_and_changes_nothing(native: Any) -> None:
    body = {"model": "qwen3", "prompt": WORDS * 30, "max_tokens": 20, "temperature": 0}
    first, second = (httpx.post(native.url + "/v1/completions", json=body).json() for _ in "ab")
    assert first["choices"] == second["choices"]
    details = second["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= 64
    assert details["cached_tokens"] % 64 == 0


def test_an_instance_killed_before_the_first_token_is_not_noticed(native: Any) -> None:
    """The cold instance is stopped, and killed while calls queue there; they are placed again."""
    hello = native.instances()["cold-0"]["hello"]
    os.kill(hello["pid"], signal.SIGSTOP)

    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=native.url, timeout=240) as client:
            prompt = WORDS * 400
            body = {"model": "qwen3-moe", "prompt": prompt, "max_tokens": 3, "stream": True}
            calls = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in "ab"]
            await asyncio.sleep(0.2)
            os.kill(hello["pid"], signal.SIGKILL)
            return await asyncio.gather(*calls)

    for answer in asyncio.run(main()):
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("[DONE]")
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        assert all("error" not in json.loads(line) for line in lines)
    assert native.instances()["cold-0"]["hello"]["incarnation"] != hello["incarnation"]
    native.until_idle()
