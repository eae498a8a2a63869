"""``alipes replay`` against servers that know only the OpenAI API, and of sessions without text."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from alipes.cli.replay import replay
from alipes.replay.runs import read_run
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Turn, Wait
from alipes.replay.traces.load import save
from alipes.replay.traces.model import Message

# What the API's own documents name, as far as a replay could send it.
OPENAI = frozenset(
    {"model", "messages", "prompt", "max_tokens", "temperature", "seed", "stream"}
) | {"stream_options"}
NOT_ALLOWED = {"message": "is off", "param": "forced_token_ids", "code": "not_allowed"}


def session(name: str, model: str = "small", start: float | None = None) -> Session:
    main = (Call(40, 3, 0, (Span(1, 0, 40),), wait=Wait.START), Call(50, 2, 43, (Span(-2, 0, 7),)))
    sub = Branch("helper", (Call(20, 2, 0, (Span(2, 0, 20),)),), MAIN, 0)
    return Session(name, (Branch(MAIN, main), sub), model=model, start=start)


def text(name: str) -> Session:
    task, reply = Message("user", "go on"), Message("assistant", "one two three")
    calls = (
        Call(2, 3, 0, (Span(1, 0, 2),), wait=Wait.START, turn=Turn(0, (task,), reply)),
        Call(7, 3, 5, (Span(1, 0, 2),), turn=Turn(2, (task,), reply)),
    )
    sub = Branch(
        "helper", (Call(2, 3, 0, (Span(1, 0, 2),), turn=Turn(0, (task,), reply)),), MAIN, 0
    )
    return Session(name, (Branch(MAIN, calls), sub), model="small")


def run(url: str, folder: Path, sessions: list[Session], *more: str) -> Result:
    app = typer.Typer()
    app.command()(replay)
    trace = folder / "trace.jsonl"
    save(trace, Trace("made", tuple(sessions)))
    arguments = [str(trace), "--base-url", url, "--out", str(folder / "out"), "--overwrite"]
    return CliRunner().invoke(app, [*arguments, *more])


def test_a_peer_that_takes_nothing_but_the_api_is_replayed_plainly(
    tmp_path: Path, serve: Any
) -> None:
    peer = {"tokenize": False, "context_told": False, "fields": OPENAI}
    with serve(**peer) as (url, seen):
        refused = run(url, tmp_path, [session("a"), text("b")])
        plain = run(url, tmp_path, [session("a"), text("b")], "--plain")
    assert refused.exit_code == 1
    assert "unknown: ['ignore_eos']" in refused.stdout
    assert plain.exit_code == 0, plain.output
    assert sorted(seen.paths) == ["/v1/chat/completions"] * 3 + ["/v1/completions"] * 3
    written = read_run(tmp_path / "out")
    assert written.info.complete
    assert {call.branch for call in written.calls} == {MAIN, "helper"}


def test_sessions_without_text_have_exact_lengths_and_share_what_was_shared(
    tmp_path: Path, serve: Any
) -> None:
    with serve() as (url, seen):
        result = run(url, tmp_path, [session("a"), session("b")], "--vocab", "3000")
    assert result.exit_code == 0, result.output
    prompts: dict[tuple[str, str], list[list[int]]] = {}
    for headers, raw in seen.calls:
        body = json.loads(raw)
        place = (headers["x-session-id"], headers.get("x-branch-id", MAIN))
        prompts.setdefault(place, []).append(body["prompt"])
        assert all(1_000 <= token < 3_000 for token in body["prompt"])
    (a, first), (b, second) = ((place, own) for place, own in prompts.items() if place[1] == MAIN)
    assert {a[0], b[0]} == {"a.small.0", "b.small.1"}
    assert first[0] == second[0]
    assert first[1][:40] == first[0]
    assert first[1][40:43] != second[1][40:43]
    assert prompts["a.small.0", "helper"] == prompts["b.small.1", "helper"]
    for call in read_run(tmp_path / "out").calls:
        assert call.completion_tokens == call.expected_tokens
        assert call.error == ""


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (None, "does not know forced_token_ids; leave --forced out"),
        (NOT_ALLOWED, "refuses it (400: is off); set gateway.allow_forced_tokens"),
        ({"message": "extra fields"}, "refuses it (400: extra fields)"),
    ],
)
def test_forced_completions_are_refused_in_one_line(
    tmp_path: Path, serve: Any, refusal: dict[str, str] | None, told: str
) -> None:
    with serve(refusal=refusal) as (url, seen):
        result = run(url, tmp_path, [session("a")], "--forced")
    assert result.exit_code == 2
    [line] = filter(None, result.stderr.splitlines())
    assert told in line
    assert seen.calls == []


def test_text_is_forced_by_the_ids_that_the_endpoint_has_for_it(tmp_path: Path, serve: Any) -> None:
    asked: list[Any] = []

    def fail(body: dict[str, Any]) -> None:
        asked.append(body.get("forced_token_ids"))

    with serve(fail=fail, forced_below=2**30) as (url, seen):
        result = run(url, tmp_path, [text("b")], "--forced")
    assert result.exit_code == 0, result.output
    ids = [sum(word.encode()) for word in ("one", "two", "three")]
    assert asked == [ids] * 3
    assert len(seen.counted) > 0
    with serve(tokenize=False, forced_below=2**30) as (url, _):
        result = run(url, tmp_path, [text("b")], "--forced")
    assert result.exit_code == 2
    assert "--forced" in result.stderr
    assert "/tokenize" in result.stderr


def test_warm_up_is_replayed_and_counted_in_nothing(tmp_path: Path, serve: Any) -> None:
    sessions = [session(name) for name in "abc"]
    with serve() as (url, seen):
        result = run(url, tmp_path, sessions, "--warmup", "2", "--concurrency", "1", "--json")
    assert result.exit_code == 0, result.output
    assert len(seen.calls) == 9
    summary = json.loads(result.stdout)
    assert [row["session"] for row in summary["sessions"]] == ["c.small.2"]
    assert summary["models"][0]["calls"] == 3
    written = read_run(tmp_path / "out")
    assert len(written.calls) == 9
    assert {call.session for call in written.counted} == {"c.small.2"}
    assert written.info.planned == {"c.small.2": 3}
    order = [call.session for call in sorted(written.calls, key=lambda call: call.intended)]
    assert order == ["a.small.0"] * 3 + ["b.small.1"] * 3 + ["c.small.2"] * 3


def test_models_of_a_trace_are_kept_or_renamed(tmp_path: Path, serve: Any) -> None:
    sessions = [session("a", "glm"), session("b", "")]
    with serve() as (url, seen):
        unknown = run(url, tmp_path, sessions, "--models", "small,large")
        renamed = run(
            url, tmp_path, sessions, "--models", "small,large", "--model-map", "glm=large"
        )
        wrong = run(url, tmp_path, sessions, "--model-map", "glm")
    assert unknown.exit_code == 2
    assert "--model-map" in unknown.stderr
    assert "no model 'glm'; it serves large, small" in unknown.stderr
    assert renamed.exit_code == 0, renamed.output
    assert {(h["x-session-id"], json.loads(raw)["model"]) for h, raw in seen.calls} == {
        ("a.large.0", "large"),
        ("b.small.1", "small"),
        ("b.large.1", "large"),
    }
    assert wrong.exit_code == 2
    assert "'glm' is not old=new" in wrong.stderr


def test_arrivals_are_those_of_the_recording_or_of_the_seed(tmp_path: Path, serve: Any) -> None:
    sessions = [session(name, start=start) for name, start in (("a", 5.0), ("b", 5.2))]

    def begins(*options: str) -> list[float]:
        with serve() as (url, _):
            result = run(url, tmp_path, sessions, *options)
        assert result.exit_code == 0, result.output
        calls = read_run(tmp_path / "out").calls
        first = [c for c in calls if c.index == 0 and c.branch == MAIN]
        return [round(call.intended, 6) for call in sorted(first, key=lambda call: call.session)]

    assert begins("--recorded") == [0.0, 0.2]
    poisson = ("--rate", "20", "--seed", "3")
    assert begins(*poisson) == begins(*poisson)
    both = run("http://127.0.0.1:9", tmp_path, sessions, "--recorded", "--rate", "1")
    assert both.exit_code == 2
    assert "--recorded and --rate" in both.stderr
    none = run("http://127.0.0.1:9", tmp_path, sessions, "--rate", "inf")
    assert (none.exit_code, "not a number" in none.stderr) == (2, True)
    before = read_run(tmp_path / "out")
    with serve() as (url, seen):
        no_start = run(url, tmp_path, [session("a")], "--recorded")
    assert no_start.exit_code == 2
    assert "session a: has no recorded start" in no_start.stderr
    assert seen.calls == []
    assert read_run(tmp_path / "out") == before


def test_what_a_model_cannot_hold_is_refused_before_anything_is_sent(
    tmp_path: Path, serve: Any
) -> None:
    with serve(context=51) as (url, seen):
        result = run(url, tmp_path, [session("a")])
    assert result.exit_code == 2
    assert "call 1 of branch main has 50 + 2 tokens, more than the 51 of small" in result.stderr
    assert seen.calls == []
