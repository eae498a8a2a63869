"""Sessions of real agents; their model speaks by a script.

Each goes through five turns while all happens to it that an agent must bear: a first token that is
slow to come, an instance that is killed and is absent for a while (503), a gateway that is killed
and comes back.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import agents
from .agents import Done, Place, Program
from .conftest import Gateway, serving
from .script import Ask, Plan, Script

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
STEPS = 4
CONTEXT = 65536
KILL, RESTART = 1, 3
"""The steps before which the instance and the gateway are killed."""
DONE = "All is done here."
CALL = re.compile(r'\{"event": "call"')
FILE = """
models:
  local: {{source: {model}}}
instances:
  hot-0:
    {{pool: hot, models: [local], engine: fake, device_bytes: 6GiB,
      fake: {{step: 0.001, prefill_token: 0.0004}}}}
gateway:
  port: {port}
  endpoint: ipc://{folder}/link
  allow_forced_tokens: true
  limits: {{keep_alive: 1, queue_timeout: 0.5, default_max_tokens: 4096}}
aliases: {{"claude-*": local}}
state: {{folder: {folder}/state}}
"""
WIDE = 200_000
"""A context that an agent is told of, so that it does not shorten its prompts in time."""
AGENTS: dict[str, Callable[[Place], Done]] = {
    "claude": agents.claude,
    "codex": lambda place: agents.codex(place, context=CONTEXT),
    "opencode": lambda place: agents.opencode(place, context=WIDE),
}
Begin = Callable[..., Script]


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, small_folders: dict[str, Path]
) -> Iterator[Gateway]:
    """Its model has a context of 64K, as Claude Code's first prompt takes half of that."""
    model = tmp_path_factory.mktemp("models") / "local"
    shutil.copytree(small_folders["qwen3"], model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    folder = tmp_path_factory.mktemp("agents")
    with serving(folder, FILE, model=model) as one:
        yield one


@pytest.fixture
def begin(gateway: Gateway) -> Iterator[Begin]:
    """Begin a script; ``step`` tells how far a call's conversation is, if it is to suffer."""
    scripts: list[Script] = []

    def begun(plan: Plan, step: Callable[[Ask], int] | None = None) -> Script:
        gateway.until_up()
        harm = {KILL: gateway.kill_instance, RESTART: gateway.restart}

        def before(ask: Ask) -> None:
            if step is not None and ask.main and step(ask) in harm:
                harm.pop(step(ask))()

        scripts.append(Script(gateway.url, "local", plan, before))
        return scripts[-1]

    yield begun
    for one in scripts:
        one.close()


@pytest.fixture
def place(program: Program, home: dict[str, str]) -> Callable[[Script], Place]:
    return lambda script: Place(program, home, script.url)


def results(ask: Ask) -> int:
    return ask.results


def loop(ask: Ask) -> str:
    """A command for each turn, and the end."""
    if ask.shell is None:
        return "ok"
    return ask.runs(f"echo step {ask.results}") if ask.results < STEPS else DONE


def check(
    script: Script, gateway: Gateway, step: Callable[[Ask], int] = results, most: float = 0.1
) -> set[str]:
    """All steps were gone through, the agent waited where it had to, and prompts were found again,
    but for the KV that was lost: a share ``most`` of them is new, and less than three blocks. The
    sessions are given back."""
    main = [seen for seen in script.seen if seen.ask.main]
    refused = [seen for seen in main if seen.status != 200]
    assert [seen.status for seen in refused] == [503] * len(refused)
    assert refused
    assert all(int(seen.headers["retry-after"]) >= 1 for seen in refused)
    answered = [seen for seen in main if seen.status == 200]
    assert {step(seen.ask) for seen in answered} == set(range(STEPS + 1))
    lines = map(json.loads, filter(CALL.match, gateway.log.read_text().splitlines()))
    calls = {line["request_id"]: line for line in lines}
    for seen in answered:
        line = calls[seen.headers["x-request-id"]]
        if step(seen.ask) not in (0, KILL):
            new = line["prompt_tokens"] - line["cached_tokens"]
            assert new <= 192 + most * line["prompt_tokens"], line
    return {seen.session for seen in answered}


def test_claude_code(begin: Begin, place: Callable[[Script], Place], gateway: Gateway) -> None:
    """A side call for a search and a sub-agent are among its steps."""

    def plan(ask: Ask) -> str:
        if ask.main and ask.results == 0 and ask.shell:
            return ask.call("WebSearch", query="the weather in Paris")
        if ask.main and ask.results == 2:
            name = next(name for name in ("Agent", "Task") if name in ask.tools)
            kinds = {"description": "count", "subagent_type": "general-purpose"}
            return ask.call(name, prompt="count the files", **kinds)
        if ask.shell and not ask.main:
            return ask.runs("ls | wc -l") if ask.results == 0 else "There are none."
        return loop(ask)

    script = begin(plan, results)
    done = agents.claude(place(script), "Bash", "WebSearch", "Agent", "Task")
    assert (done.code, DONE in done.told) == (0, True), done
    others = [seen for seen in script.seen if not seen.ask.main]
    searches = [seen for seen in others if "web_search" in seen.ask.text and not seen.ask.shell]
    subs = [seen for seen in others if seen.ask.shell]
    assert [seen.status for seen in searches] == [200], [
        (s.ask.text[:3000], s.body) for s in searches
    ]
    assert [(seen.ask.results, seen.status) for seen in subs] == [(0, 200), (1, 200)]
    assert len(check(script, gateway)) == 1


def test_codex(begin: Begin, place: Callable[[Script], Place], gateway: Gateway) -> None:
    """Less silence is borne than the first token takes."""
    script = begin(loop, results)
    done = agents.codex(place(script), "stream_idle_timeout_ms = 2500")
    assert (done.code, DONE in done.told) == (0, True), done
    assert len(check(script, gateway)) == 1


def test_opencode(begin: Begin, place: Callable[[Script], Place], gateway: Gateway) -> None:
    """Its side call asks for a title."""
    script = begin(loop, results)
    done = agents.opencode(place(script))
    assert (done.code, DONE in done.told) == (0, True), done
    titles = [seen for seen in script.seen if not seen.ask.shell]
    assert titles
    assert all(seen.status == 200 for seen in titles)
    assert len(check(script, gateway)) == 1


def test_mini_swe_agent(begin: Begin, place: Callable[[Script], Place], gateway: Gateway) -> None:
    def plan(ask: Ask) -> str:
        last = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        return loop(ask) if ask.results < STEPS else ask.runs(last)

    script = begin(plan, results)
    done = agents.mini_swe_agent(place(script))
    assert done.code == 0, done
    assert len(check(script, gateway)) == 1


def test_aider(begin: Begin, place: Callable[[Script], Place], gateway: Gateway) -> None:
    """Questions about a step each, and an edit. It ends each prompt with a reminder: none is the
    beginning of the next one."""

    def step(ask: Ask) -> int:
        return ask.text.count("So ends step")

    def plan(ask: Ask) -> str:
        return f"So ends step {step(ask)}." if step(ask) < STEPS else "new.txt\n```\nmade\n```\n"

    script = begin(plan, step)
    at = place(script)
    asked = [f"{agents.PROMPT}: {number}" for number in range(STEPS)]
    done = agents.aider(at, *asked, "make new.txt")
    assert done.code == 0, done
    assert (at.work / "new.txt").read_text() == "made\n", done
    check(script, gateway, step, most=0.3)


def spilling() -> Plan:
    """Commands that tell more and more, until that is shorter again."""
    most = 0

    def plan(ask: Ask) -> str:
        nonlocal most
        most = max(most, ask.results)
        if ask.shell is None or ask.results < most:
            return DONE
        return ask.runs("seq 1 2500")

    return plan


@pytest.mark.parametrize("agent", AGENTS, ids=AGENTS)
def test_an_overflow(begin: Begin, place: Callable[[Script], Place], agent: str) -> None:
    """Commands tell more and more until a prompt is refused; the agent makes it shorter by itself
    and comes to an end. Codex, whose turn would end there, does so in time if it is told of the
    context; what it sends for that is refused."""

    script = begin(spilling())
    done = AGENTS[agent](place(script))
    statuses = [seen.status for seen in script.seen]
    assert DONE in done.told, done
    assert 400 in statuses
    assert statuses[-1] == 200
    mains = [seen.ask.results for seen in script.seen if seen.ask.main]
    assert mains[-1] < max(mains)


def test_an_overflow_of_mini_swe_agent(begin: Begin, place: Callable[[Script], Place]) -> None:
    """It cannot make its prompt shorter, and does not send it again."""
    script = begin(spilling())
    done = agents.mini_swe_agent(place(script))
    statuses = [seen.status for seen in script.seen]
    assert statuses == [200] * (len(statuses) - 1) + [400], done
