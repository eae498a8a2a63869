"""Any sequence of chats tokenizes as if each were the first."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tokenizers import Tokenizer

from alipes.gateway.text.cache import Known, PromptCache
from alipes.gateway.text.decode import Pieces
from alipes.gateway.text.messages import normalize
from alipes.gateway.text.model import ModelText
from alipes.gateway.text.template import ChatTemplate
from alipes.gateway.text.tokens import NO_CUTS, TextEncoder

PLAIN = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}\n"
    "{% endfor %}assistant:"
)
KINDS = ("smollm2", "qwen3", "plain")

contents = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "\n\n", "  a", "<|im_end|>\n<|im_start|>user", "<|im_", "a <|im_end|>"]
    ),
    st.sampled_from(["word " * 400, "x = 12  # é\n\n    y" * 40]),
)
calls = st.builds(
    lambda name, arguments: {"function": {"name": name, "arguments": arguments}},
    st.text(max_size=4),
    st.sampled_from(["{}", '{"a": "\u00e9 <|im_end|>"}', "{broken"]),
)
messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool"]), "content": contents}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": contents},
        optional={"tool_calls": st.lists(calls, max_size=2)},
    ),
)
tools = st.one_of(
    st.none(),
    st.lists(st.fixed_dictionaries({"type": st.just("function"), "n": contents}), max_size=2),
)
edits = st.lists(
    st.tuples(st.floats(0, 1), st.lists(messages, max_size=3), tools, st.sampled_from("ab")),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def parts(
    smollm2_folder: Path, tiny_folders: dict[str, Path]
) -> dict[str, tuple[ChatTemplate, TextEncoder, Pieces]]:
    source = (smollm2_folder / "tokenizer.json").read_text()
    encoder = TextEncoder(Tokenizer.from_str(source), far=64)
    pieces = Pieces(encoder.tokenizer)
    templates = (
        ChatTemplate.load(smollm2_folder),
        ChatTemplate.load(tiny_folders["qwen3"]),
        ChatTemplate(PLAIN, {}),
    )
    return {kind: (t, encoder, pieces) for kind, t in zip(KINDS, templates, strict=True)}


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=edits)
def test_edited_histories_tokenize_as_if_new(
    runner: asyncio.Runner,
    parts: dict[str, tuple[ChatTemplate, TextEncoder, Pieces]],
    kind: str,
    history: list[tuple[float, list[dict[str, Any]], list[dict[str, Any]] | None, str]],
) -> None:
    template, encoder, pieces = parts[kind]
    config = {"max_position_embeddings": 8192, "vocab_size": 49152}
    text = ModelText("m", config, (), template, encoder, pieces)
    chat: list[dict[str, Any]] = [{"role": "user", "content": "start"}]
    for keep, added, offered, tenant in history:
        chat = [*chat[: max(1, round(keep * len(chat)))], *added]
        prompt = runner.run(text.chat(chat, offered, tenant))
        whole = encoder.encode(template.render(normalize(chat), offered), release=False)
        assert prompt.tokens.tolist() == whole.ids.tolist()
        assert 0 <= prompt.reused <= len(prompt.tokens)


class CacheMachine(RuleBasedStateMachine):
    """Against a list of (keys, prompt) in order of use, counted anew every time."""

    limit = 6000

    def __init__(self) -> None:
        super().__init__()
        self.cache = PromptCache(self.limit)
        self.owner: dict[bytes, Known] = {}
        self.used: list[Known] = []

    paths = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4).map(
        lambda letters: [b"/".join(letters[: i + 1]) for i in range(len(letters))]
    )

    @rule(path=paths, size=st.integers(0, 1500))
    def store(self, path: list[bytes], size: int) -> None:
        known = Known("x" * size, NO_CUTS[:, 0], NO_CUTS)
        self.cache.store(path, known)
        if sys.getsizeof(known.text) + 200 * len(path) > self.limit:
            return
        self.used.append(known)
        self.owner |= dict.fromkeys(path, known)
        self.used = [k for k in self.used if any(o is k for o in self.owner.values())]
        while self.model_cost() > self.limit:
            gone = self.used.pop(0)
            self.owner = {key: k for key, k in self.owner.items() if k is not gone}

    @rule(path=paths)
    def find(self, path: list[bytes]) -> None:
        expected = next((self.owner[key] for key in reversed(path) if key in self.owner), None)
        assert self.cache.find(path) is expected
        if expected is not None:
            self.used = [k for k in self.used if k is not expected] + [expected]

    def model_cost(self) -> int:
        return sum(sys.getsizeof(k.text) for k in self.used) + 200 * len(self.owner)

    @invariant()
    def counts_are_true(self) -> None:
        assert self.cache.cost == self.model_cost() <= self.limit
        assert len(self.cache) == len(self.used)


TestPromptCache = CacheMachine.TestCase
TestPromptCache.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
