"""A live replay as a run folder: what ran, calls as they end, and what an earlier run of the same
replay has already done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from alipes.replay.files import write_whole
from alipes.replay.pacing import Pacing, PacingSettings
from alipes.replay.prepare import Sending
from alipes.replay.records import CallRecord, Recorder
from alipes.replay.runner import Replay, complete_sessions
from alipes.replay.runs import (
    CALLS_FILE,
    MEMORY_FILE,
    ROUNDS_FILE,
    RUN_FILE,
    SWITCHES_FILE,
    RunError,
    RunInfo,
    read_run,
    write_info,
)

SUMMARY_FILE = "summary.json"


def describe(
    files: Sequence[Path],
    name: str,
    models: Sequence[str],
    renamed: Mapping[str, str],
    pacing: PacingSettings,
    sending: Sending,
) -> RunInfo:
    """What is to run; ``settings`` holds all that decides what is sent, and when."""
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(hashlib.blake2b(file.read_bytes()).digest())
    trace = ", ".join(file.name for file in files)
    settings = {
        "models": ",".join(models),
        "model_map": ",".join(f"{old}={new}" for old, new in sorted(renamed.items())),
        "concurrency": str(pacing.concurrency),
        "rate": str(pacing.rate),
        "recorded": str(pacing.recorded),
        "gap_cap": str(pacing.gap_cap),
        "warmup": str(sending.warmup),
        "forced": str(sending.forced),
        "plain": str(sending.plain),
        "vocabulary": f"{sending.vocabulary.low}-{sending.vocabulary.high}",
        "trace": digest.hexdigest(),
    }
    return RunInfo(
        scenario=f"replay of {trace}",
        configuration=name,
        kind="live",
        trace=trace,
        seed=pacing.seed,
        complete=False,
        settings=settings,
    )


def take_up(folder: Path, info: RunInfo, replay: Replay) -> None:
    """Give the replay the records of what an earlier run in ``folder`` completed. Raises
    ``RunError`` where that was another replay, or one against another endpoint."""
    if not (folder / RUN_FILE).exists():
        return
    earlier = read_run(folder)
    wanted = _identity(_against(info, replay))
    found = _identity(earlier.info)
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            raise RunError(
                f"--resume: {folder} holds another replay ({name}: {found.get(name)}, now"
                f" {wanted.get(name)}); repeat its options, or give another --out"
            )
    done = complete_sessions(replay.sessions, earlier.calls)
    replay.records = [record for record in earlier.calls if record.session in done]


def _identity(info: RunInfo) -> dict[str, str]:
    """What two runs have in common if they are one replay."""
    return {**info.settings, "seed": str(info.seed), "endpoint": info.endpoint}


def _against(info: RunInfo, replay: Replay) -> RunInfo:
    return msgspec.structs.replace(info, endpoint=replay.endpoint.url)


async def record(
    replay: Replay,
    folder: Path,
    info: RunInfo,
    pacing: PacingSettings,
    on_call: Callable[[CallRecord], None],
) -> None:
    """Send every remaining call; each is a line of the folder's calls as it ends. However the run
    ends, the folder holds a valid run. Raises ``SessionError`` before the folder is touched."""
    Pacing([session.recorded for session in replay.sessions], pacing, 0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SWITCHES_FILE, ROUNDS_FILE, MEMORY_FILE, SUMMARY_FILE):
        (folder / name).unlink(missing_ok=True)
    _write_info(folder, info, replay)
    with closing(Recorder(folder / CALLS_FILE, replay.records)) as recorder:

        def ended(call: CallRecord) -> None:
            recorder.add(call)
            on_call(call)

        try:
            await replay.run(ended, pacing)
        finally:
            _write_info(folder, info, replay)
            summary = msgspec.json.encode(replay.summary())
            write_whole(folder / SUMMARY_FILE, summary)


def _write_info(folder: Path, info: RunInfo, replay: Replay) -> None:
    planned = {
        session.session: session.recorded.calls for session in replay.sessions if not session.warmup
    }
    seconds = max((record.finished for record in replay.records), default=0.0)
    now = msgspec.structs.replace(info, planned=planned, seconds=seconds, complete=replay.complete)
    write_info(folder, _against(now, replay))
