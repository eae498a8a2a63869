from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from alipes.gateway.api.openai.messages import messages_of
from alipes.gateway.conversation.message import Conversation
from alipes.gateway.text.model import ModelText

MODELS = ("llama", "qwen3")


@pytest.fixture
def agents(script: Callable[[str], ModuleType]) -> Any:
    return script("agents")


def plan(agents: Any, folder: Path, seed: int = 3) -> Any:
    shape = agents.Shape((2, 4), (50, 90), (10, 20), (5, 9))
    return agents.sessions(MODELS, 2, shape, folder, seed)


def calls_of(session: Any) -> range:
    return range(session.recorded.calls)


def test_the_work_is_the_same_for_a_seed_and_another_for_another(
    agents: Any, tiny_folders: dict[str, Path]
) -> None:
    folder = tiny_folders["llama"]
    bodies = [[s.request(0, i, False).body for s in plan(agents, folder, seed) for i in calls_of(s)]
              for seed in (3, 3, 4)]  # fmt: skip
    assert bodies[0] == bodies[1] != bodies[2]


def test_every_session_has_its_model_and_ends_with_a_free_answer(
    agents: Any, tiny_folders: dict[str, Path]
) -> None:
    sessions = plan(agents, tiny_folders["llama"])
    assert [s.models for s in sessions] == [("llama",), ("qwen3",)] * 2
    for session in sessions:
        *held, last = calls_of(session)
        assert 1 <= len(held) <= 3
        for index in held:
            body = json.loads(session.request(0, index, False).body)
            assert len(body["forced_token_ids"]) == body["max_tokens"]
        assert "forced_token_ids" not in json.loads(session.request(0, last, True).body)


@pytest.mark.parametrize("family", MODELS)
def test_a_prompt_begins_with_the_last_one_and_its_answer(
    agents: Any, tiny_folders: dict[str, Path], family: str
) -> None:
    text = ModelText.load(family, tiny_folders[family])
    for session in plan(agents, tiny_folders["llama"]):
        known: list[int] = []
        for call in session.prompts.calls[0]:
            messages = [message.wire() for message in call.prompt]
            prompt = asyncio.run(text.chat(Conversation(messages_of(messages)), "")).tokens.tolist()
            assert prompt[: len(known)] == known
            assert len(prompt) > len(known)
            known = [*prompt, *call.forced]


def test_gaps_are_those_of_the_paper(agents: Any, tiny_folders: dict[str, Path]) -> None:
    writer = agents.Writer(tiny_folders["llama"], np.random.default_rng(1))
    gaps = [writer.gap() for _ in range(4000)]
    assert median(gaps) == pytest.approx(agents.GAP_P50, rel=0.05)
    assert np.percentile(gaps, 95) == pytest.approx(agents.GAP_P95, rel=0.1)
    assert max(gaps) <= agents.GAP_CAP
