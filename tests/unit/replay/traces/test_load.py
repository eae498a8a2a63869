"""Files in and out, and real recordings against independent, slow counts."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
from pathlib import Path

import pytest

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.lines import bytes_of
from alipes.replay.traces.load import load, save
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.sample import sample

REPOSITORY = Path(__file__).parents[4]
SHIPPED = REPOSITORY / "replay" / "data" / "marshmallow-1867-xml.traj"
SHARED = REPOSITORY.parent / "shared" / "traces"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no shared traces beside the checkout"
)


def session(name: str, calls: int = 1) -> Session:
    first = Call(10, 5, 0, (Span(1, 0, 10),), wait=Wait.START)
    more = (Call(15 + 5 * i, 5, 15 + 5 * i) for i in range(calls - 1))
    return Session(name, (Branch(MAIN, (first, *more)),))


TRACE = Trace("made", tuple(session(f"s{i}", 1 + i % 4) for i in range(20)))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_saved_trace_is_whole_and_always_the_same_bytes(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, TRACE)
    first = (tmp_path / name).read_bytes()
    save(tmp_path / name, TRACE)
    assert (tmp_path / name).read_bytes() == first
    assert load([tmp_path / name]) == TRACE
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_byte_order_mark_is_no_content(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, TRACE)
    plain = bytes_of(tmp_path / name)
    marked = codecs.BOM_UTF8 + plain
    (tmp_path / name).write_bytes(gzip.compress(marked) if name.endswith(".gz") else marked)
    assert load([tmp_path / name]) == TRACE
    azure = tmp_path / "rows"
    azure.write_bytes(
        codecs.BOM_UTF8
        + b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    )
    assert load([azure]).calls == 1


def test_nothing_is_written_of_a_trace_that_does_not_hold_together(tmp_path: Path) -> None:
    bad = Trace("made", (*TRACE.sessions, Session("bad", ())))
    for format in ("alipes", "agentic-mooncake"):
        with pytest.raises(TraceError, match="'bad': has no branch"):
            save(tmp_path / "t.jsonl", bad, format)
    assert not list(tmp_path.iterdir())


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    save(path, TRACE)
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(TraceError, match="19 sessions, but the header says 20"):
        load([path])
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(TraceError, match=r"t\.jsonl\.gz: not a whole gzip file"):
        load([packed])


def test_a_fault_of_a_session_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    save(path, TRACE)
    path.write_bytes(path.read_bytes().replace(b'"prompt":10', b'"prompt":11', 1))
    with pytest.raises(TraceError, match=r"line 2: session 's0': .*call 0: prompt: 11 tokens"):
        load([path])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ((b'"version":1', b'"version":2'), "line 1: is not the header"),
        ((b'"version":1', b'"version":1,"extra":0'), "line 1: .*unknown field `extra`"),
        ((b'"id":"s3"', b'"id":"s2"'), "line 5: session 's2': is there twice"),
        ((b'"id":"s3"', b'"id":"s3","ends":1'), "line 5: .*unknown field `ends`"),
        ((b'"wait":"start"', b'"wait":"lunch"'), r"line 2: branches\[0\]\.calls\[0\]\.wait"),
    ],
)
def test_what_the_own_format_does_not_know_is_refused(
    tmp_path: Path, changed: tuple[bytes, bytes], problem: str
) -> None:
    path = tmp_path / "t.jsonl"
    save(path, TRACE)
    assert changed[0] in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(*changed, 1))
    with pytest.raises(TraceError, match=problem):
        load([path], "alipes")


def test_files_are_told_apart(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        save(tmp_path / name, TRACE)
    with pytest.raises(TraceError, match=r"b\.jsonl: session 's0' is also in .*a\.jsonl"):
        load([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    with pytest.raises(TraceError, match=r"no\.jsonl: No such file"):
        load([tmp_path / "no.jsonl"])


def test_a_sample_is_whole_sessions_by_seed() -> None:
    drawn = sample(TRACE, 4, seed=3, calls_at_most=2)
    assert drawn == sample(TRACE, 4, seed=3, calls_at_most=2)
    assert drawn != sample(TRACE, 4, seed=4, calls_at_most=2)
    assert all(one in TRACE.sessions and one.calls <= 2 for one in drawn.sessions)
    assert [int(one.id[1:]) for one in drawn.sessions] == sorted(
        int(one.id[1:]) for one in drawn.sessions
    )
    assert sample(TRACE, 20, seed=1) == TRACE
    with pytest.raises(ValueError, match="11 sessions asked for, but there are 10"):
        sample(TRACE, 11, seed=1, calls_at_most=2)


def test_a_recorded_run_keeps_its_text() -> None:
    trace = load([SHIPPED], count=len)
    calls = trace.sessions[0].branches[0].calls
    assert trace.sessions[0].id == "marshmallow-1867-xml-a56c8447"
    raw = json.loads(SHIPPED.read_text())["history"]
    said: list[str] = []
    for call in calls:
        turn = call.turn
        assert turn
        assert call.kept == sum(map(len, said))
        assert turn.kept == len(said)
        said += [message.content for message in turn.added]
        assert call.prompt == sum(map(len, said))
        assert call.output == len(turn.reply.content)
        said.append(turn.reply.content)
    assert said == [item["content"] for item in raw[: len(said)]]
    quarter = load([SHIPPED]).sessions[0].branches[0].calls
    assert quarter[-1].prompt == sum(-(-len(text) // 4) for text in said[:-1])


@needs_shared
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_mooncake_traces_hold_what_their_rows_say(name: str) -> None:
    path = SHARED / "mooncake" / f"{name}_trace.jsonl"
    trace = load([path])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    calls = [one.branches[0].calls[0] for one in trace.sessions]
    assert len(calls) == len(rows) == trace.calls
    streams: dict[int, int] = {}
    for row, call, one in zip(rows, calls, trace.sessions, strict=True):
        assert (row["input_length"], row["output_length"]) == (call.prompt, call.output)
        assert one.start == row["timestamp"] / 1000
        assert len(call.added) == len(row["hash_ids"])
        for hash_id, span in zip(row["hash_ids"], call.added, strict=True):
            assert streams.setdefault(hash_id, span.stream) == span.stream
            assert span.start == 0
    assert len(set(streams.values())) == len(streams)


@needs_shared
def test_azure_traces_hold_what_their_rows_say() -> None:
    path = SHARED / "azure" / "AzureLLMInferenceTrace_code.csv"
    trace = load([path])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    calls = [one.branches[0].calls[0] for one in trace.sessions]
    assert [call.prompt for call in calls] == [int(row["ContextTokens"]) for row in rows]
    assert [call.output for call in calls] == [int(row["GeneratedTokens"]) for row in rows]
    starts = [one.start or 0.0 for one in trace.sessions]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(3435.948056)


@needs_shared
def test_claude_code_sessions_hold_what_their_rows_say() -> None:
    path = SHARED / "claude-code-sessions.jsonl"
    trace = load([path])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    raw = [call for row in rows for branch in row["branches"] for call in branch["calls"]]
    calls = [call for one in trace.sessions for branch in one.branches for call in branch.calls]
    assert (len(trace.sessions), trace.calls) == (138, 9777)
    assert sum(len(one.branches) for one in trace.sessions) == 210
    assert [call.prompt for call in calls] == [call["prompt"] for call in raw]
    assert [call.output for call in calls] == [call["output"] for call in raw]
    kept = 0
    for row in rows:
        for branch in row["branches"]:
            before = None
            for call in branch["calls"]:
                if before is not None:
                    whole = call["kept"] == before["prompt"]
                    end = before["prompt"] + before["output"] if whole else call["kept"]
                    kept += min(end, call["prompt"])
                before = call
    assert sum(call.kept for call in calls) == kept
    # 71 calls waited for sub-agents; the recording has none left for 15 of them.
    assert sum(call.wait is Wait.BRANCH for call in calls) == 56
    assert sum(len(call.joins) for call in calls) == 67


@needs_shared
def test_every_shared_recording_survives_both_writers(tmp_path: Path) -> None:
    paths = [*SHARED.glob("*-agent/*.traj*"), SHARED / "claude-code-sessions.jsonl"]
    trace = sample(load(paths), 40, seed=1)
    save(tmp_path / "own.jsonl.gz", trace)
    assert load([tmp_path / "own.jsonl.gz"]) == trace
    save(tmp_path / "agentic.jsonl", trace, "agentic-mooncake")
    back = load([tmp_path / "agentic.jsonl"])
    for one, again in zip(trace.sessions, back.sessions, strict=True):
        for branch in one.branches:
            other = next(b for b in again.branches if b.name == branch.name)
            assert [(c.prompt, c.output, c.wait) for c in branch.calls] == [
                (c.prompt, c.output, c.wait) for c in other.calls
            ]
