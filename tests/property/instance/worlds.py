"""Instances and sessions to try on them, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from alipes.instance.contract import InstanceSettings, ModelReport, Submit, Targets

from .simulated import BLOCK, Costs, answer, report, settings_of, submission
from .timed import Session, Step, TimedEngine

CAPACITY = 120
MS = 1_000_000
TIMES = st.sampled_from([0, 1, 20, 100, 300, 1_000]).map(lambda ms: ms * MS)


class World:
    """An instance of models with ``blocks`` device blocks each, and what it gets to do."""

    def __init__(
        self,
        settings: InstanceSettings,
        blocks: int,
        costs: Costs,
        copying: float,
        sessions: list[Session],
    ) -> None:
        self.settings = settings
        self.blocks = blocks
        self.costs = costs
        self.copying = copying
        self.sessions = sessions

    def __repr__(self) -> str:
        """Without the tokens."""
        told = "; ".join(", ".join(map(_told, session)) for session in self.sessions)
        return f"{self.settings} {self.blocks} {self.costs} {self.copying}: {told}"

    def parts(self) -> tuple[InstanceSettings, tuple[ModelReport, ...], TimedEngine, list[Session]]:
        reports = tuple(report(model.name, self.blocks) for model in self.settings.models)
        engine = TimedEngine(costs=self.costs, block_seconds=self.copying)
        return self.settings, reports, engine, self.sessions


def _told(step: Step) -> str:
    call, until = step.call, "" if step.patience is None else f" until {step.patience}"
    tokens = f"{len(call.tokens) // 4}+{call.max_tokens}"
    return f"{step.gap} {call.model} {tokens} priority {call.priority}{until}"


@st.composite
def sessions(draw: st.DrawFn, names: list[str]) -> list[Session]:
    return [_session(draw, number, names) for number in range(draw(st.integers(2, 6)))]


def _session(draw: st.DrawFn, number: int, names: list[str]) -> Session:
    """Contexts differ from a session's number on, so that no two calls ever compute the same."""
    model = draw(st.sampled_from(names))
    prompt = [*[1] * (BLOCK * draw(st.integers(0, 3))), number, *[7] * draw(st.integers(0, 40))]
    steps: list[Step] = []
    for turn in range(draw(st.integers(1, 4))):
        tokens = draw(st.integers(1, 60))
        if len(prompt) + tokens > CAPACITY:
            break
        patience = draw(st.integers(1, 500)) if draw(st.integers(0, 9)) == 0 else None
        call = _call(number, turn, model, prompt, tokens, draw)
        steps.append(Step(draw(TIMES), call, None if patience is None else patience * MS))
        prompt = [*prompt, *answer(prompt, tokens, ()), *[3] * draw(st.integers(1, 20))]
    return steps


def _call(
    session: int, turn: int, model: str, prompt: list[int], tokens: int, draw: st.DrawFn
) -> Submit:
    forced = b"".join(token.to_bytes(4, "little") for token in answer(prompt, tokens, ()))
    return submission(
        1000 * session + turn,
        model,
        prompt,
        tokens,
        priority=draw(st.integers(0, 1)),
        branch=b"branch %d" % session,
        continuation=turn > 0,
        forced=forced,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = [f"m{n}" for n in range(draw(st.integers(1, 3)))]
    chosen = settings_of(
        names,
        host_bytes=draw(st.sampled_from([0, 12_000, 30_000, 1_000_000])),
        max_running=draw(st.sampled_from([2, 4, 8])),
        targets=draw(st.sampled_from([Targets(4.0, 0.2, 0.8), Targets(1.0, 0.05, 0.5)])),
        session_prefill=draw(st.booleans()),
        host_kv=draw(st.booleans()),
        prefill_turns=draw(st.booleans()),
        allow_forced_tokens=True,
    )
    costs = Costs(
        step=draw(st.sampled_from([0.002, 0.02, 0.1])),
        switch=draw(st.sampled_from([0.0, 0.1, 1.0])),
    )
    copying = draw(st.sampled_from([0.0, 0.002, 0.03]))
    blocks = draw(st.sampled_from([CAPACITY // BLOCK, 33, 60, 300]))
    return World(chosen, blocks, costs, copying, draw(sessions(names)))
