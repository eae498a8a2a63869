from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import uvloop
import zmq

from alipes.gateway.fleet.backoff import BackoffSettings
from alipes.gateway.fleet.endpoints import FleetError, default_endpoint, default_state_folder
from alipes.gateway.fleet.launcher import Launcher, LaunchSpec, LaunchState, ProcessState
from alipes.gateway.fleet.link import Fleet
from alipes.instance.contract import (
    LINK_SECRET_VARIABLE,
    PROTOCOL,
    Cancel,
    FakeCosts,
    FinishReason,
    ModelSettings,
    Pool,
    Refused,
    Stop,
    encode,
)

from .instances import SLOW, Recorder, alive, ended, fleet, launch, process, settings, submit

QUICK = BackoffSettings(first=0.1, longest=0.4, healthy=60.0)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with TemporaryDirectory(prefix="alipes-") as folder:
        yield f"ipc://{folder}/link"


def test_hello_then_calls_in_order_then_stop(endpoint: str) -> None:
    """64 concurrent calls: every stream is whole, and equal prompts give equal tokens."""

    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink) as link, process(settings(endpoint)) as started:
            await sink.until(lambda: len(sink.hellos) == 1)
            hello = sink.hellos[0]
            assert (hello.protocol, hello.name, hello.pid) == (PROTOCOL, "one", started.pid)
            assert hello.models[0].name == "m"
            calls = [submit([n % 8] * 100, 20 + n % 8) for n in range(64)]
            assert all(link.send("one", call) for call in calls)
            await sink.until(lambda: len(sink.finished) == 64)
            by_prompt: dict[bytes, list[int]] = {}
            for call in calls:
                done = sink.finished[call.call_id]
                assert done.reason is FinishReason.LENGTH
                assert len(sink.tokens[call.call_id]) == call.max_tokens
                expected = by_prompt.setdefault(call.tokens, sink.tokens[call.call_id])
                assert sink.tokens[call.call_id] == expected
            assert len({tuple(tokens[:20]) for tokens in by_prompt.values()}) == 8
            await sink.until(sink.counters_show(live_calls=0, finished=64))
            assert link.send("one", Stop())
            code, _ = await ended(started)
            assert code == 0
            await sink.until(lambda: bool(sink.lost_reasons))
            assert sink.lost_reasons == ["it ended: the gateway asks for it"]
            assert not link.send("one", Stop())

    uvloop.run(run())


def test_cancel_frees_what_a_call_holds(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        chosen = settings(endpoint, fake=SLOW)
        async with fleet(endpoint, sink) as link, process(chosen):
            await sink.until(lambda: bool(sink.hellos))
            call = submit([1, 2, 3], 10_000)
            link.send("one", call)
            await sink.until(lambda: call.call_id in sink.tokens)
            link.send("one", Cancel(call.call_id))
            await sink.until(sink.counters_show(live_calls=0, cancelled=1))
            assert call.call_id not in sink.finished

    uvloop.run(run())


def test_a_killed_instance_is_lost_and_started_again(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        states: list[LaunchState] = []
        launcher = Launcher([launch(settings(endpoint))], states.append, QUICK)
        async with fleet(endpoint, sink):
            await launcher.start()
            try:
                await sink.until(lambda: len(sink.hellos) == 1)
                os.kill(sink.hellos[0].pid, signal.SIGKILL)
                await sink.until(lambda: len(sink.hellos) == 2)
                assert len(sink.lost_reasons) == 1
                assert sink.hellos[0].incarnation != sink.hellos[1].incarnation
            finally:
                await launcher.stop()
        assert [state.state for state in states] == [
            ProcessState.RUNNING,
            ProcessState.WAITING,
            ProcessState.RUNNING,
            ProcessState.STOPPED,
        ]
        assert "SIGKILL" in states[1].reason
        assert states[3].reason == "exit code 0"
        assert not any(alive(hello.pid) for hello in sink.hellos)

    uvloop.run(run())


@pytest.mark.parametrize("ending", [False, True])
def test_a_link_that_ends_with_everything_is_no_warning(
    endpoint: str, caplog: pytest.LogCaptureFixture, ending: bool
) -> None:
    caplog.set_level("INFO")

    async def run() -> None:
        sink = Recorder()
        launcher = Launcher([launch(settings(endpoint))], lambda state: None, QUICK)
        async with fleet(endpoint, sink) as link:
            await launcher.start()
            await sink.until(lambda: bool(sink.hellos))
            link.ending = ending
            await launcher.stop()
            await sink.until(lambda: bool(sink.lost_reasons))

    uvloop.run(run())
    levels = [r.levelname for r in caplog.records if r.getMessage().startswith("one lost: ")]
    assert levels == ["INFO" if ending else "WARNING"]


def test_a_restarted_gateway_finds_the_same_process_without_its_calls(endpoint: str) -> None:
    async def run() -> None:
        first, second = Recorder(), Recorder()
        async with process(settings(endpoint, fake=SLOW)) as started:
            async with fleet(endpoint, first) as link:
                await first.until(lambda: bool(first.hellos))
                call = submit([1, 2, 3], 10_000)
                link.send("one", call)
                await first.until(lambda: len(first.tokens.get(call.call_id, [])) >= 3)
            async with fleet(endpoint, second) as link:
                await second.until(second.counters_show(live_calls=0, cancelled=1))
                assert second.hellos == first.hellos
                again = submit([1, 2, 3], 3)
                link.send("one", again)
                await second.until(lambda: again.call_id in second.finished)
                assert second.tokens[again.call_id] == first.tokens[call.call_id][:3]
            assert started.returncode is None

    uvloop.run(run())


def test_a_stopped_process_is_lost_and_comes_back_when_it_beats_again(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink), process(settings(endpoint)) as started:
            await sink.until(lambda: sink.beats > 1)
            started.send_signal(signal.SIGSTOP)
            await sink.until(lambda: bool(sink.lost_reasons))
            assert "no beat for" in sink.lost_reasons[0]
            started.send_signal(signal.SIGCONT)
            await sink.until(lambda: len(sink.hellos) == 2)
            assert sink.hellos[0] == sink.hellos[1]
            await sink.until(lambda: sink.snapshot is not None)

    uvloop.run(run())


def test_a_busy_gateway_does_not_lose_living_instances(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink), process(settings(endpoint)):
            await sink.until(lambda: sink.beats > 1)
            time.sleep(0.7)  # longer than five beats, shorter than ten
            before = sink.beats
            await sink.until(lambda: sink.beats > before + 3)
            assert sink.lost_reasons == []

    uvloop.run(run())


def test_a_newer_process_replaces_an_older_one(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink) as link, process(settings(endpoint)) as old:
            await sink.until(lambda: len(sink.hellos) == 1)
            async with process(settings(endpoint)) as new:
                code, said = await ended(old)
                assert code == 2
                assert "a newer process serves as 'one'" in said
                await sink.until(lambda: sink.snapshot is not None)
                assert sink.hellos[-1].pid == new.pid
                lost = len(sink.lost_reasons)
                link.drop("one", "the old process ended", pid=old.pid)
                assert len(sink.lost_reasons) == lost
                link.drop("one", "the new process ended", pid=new.pid)
                assert sink.lost_reasons[lost:] == ["the new process ended"]

    uvloop.run(run())


def test_an_unknown_name_is_refused_with_exit_code_2(endpoint: str) -> None:
    async def run() -> None:
        stranger = process(settings(endpoint, name="three"))
        async with fleet(endpoint, Recorder()), stranger as started:
            code, said = await ended(started)
            assert code == 2
            assert "'three' is not in the cluster file, which has: one, two" in said

    uvloop.run(run())


def test_a_refused_version_is_a_clear_error(endpoint: str) -> None:
    """A gateway of another version answers Hello by Refused, whatever else it speaks."""

    async def run() -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(endpoint)
        async with process(settings(endpoint)) as started:
            identity, _ = await asyncio.to_thread(router.recv_multipart)
            reason = "the instance speaks protocol 1, the gateway 2"
            router.send_multipart((identity, encode(Refused(reason))))
            code, said = await ended(started)
        context.destroy(linger=0)
        assert code == 2
        assert reason in said

    uvloop.run(run())


def test_a_launcher_does_not_repeat_what_is_refused(endpoint: str) -> None:
    async def run() -> None:
        states: list[LaunchState] = []
        launcher = Launcher([launch(settings(endpoint, engine="steam"))], states.append, QUICK)
        await launcher.start()
        await Recorder().until(lambda: len(states) == 2)
        await launcher.stop()
        assert [state.state for state in states] == [ProcessState.RUNNING, ProcessState.FAILED]

    uvloop.run(run())


def test_an_orphan_ends_itself(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        chosen = settings(endpoint, orphan_seconds=0.5, beat_seconds=0.05)
        async with process(chosen) as started:
            async with fleet(endpoint, sink, beat=0.05):
                await sink.until(lambda: bool(sink.hellos))
                await asyncio.sleep(1.0)
                assert started.returncode is None
            code, said = await ended(started)
            assert code == 0
            assert "orphaned: no gateway for" in said

    uvloop.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_busy_instance(endpoint: str, number: signal.Signals) -> None:
    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink) as link, process(settings(endpoint, fake=SLOW)) as started:
            await sink.until(lambda: bool(sink.hellos))
            call = submit([1, 2, 3], 10_000)
            link.send("one", call)
            await sink.until(lambda: call.call_id in sink.tokens)
            started.send_signal(number)
            code, said = await ended(started, seconds=3)
            assert code == 0
            assert number.name in said
            await sink.until(lambda: bool(sink.lost_reasons))
            assert sink.lost_reasons == [f"it ended: {number.name}"]
            assert call.call_id in sink.failed

    uvloop.run(run())


def test_a_signal_does_not_wait_for_an_engine_that_is_being_built(endpoint: str) -> None:
    async def run() -> None:
        async with process(settings(endpoint), build="slow") as started:
            assert started.stderr is not None
            await started.stderr.readuntil(b"builds its engine")
            started.send_signal(signal.SIGTERM)
            code, said = await ended(started, seconds=3)
            assert code == 0
            assert "leaving without it" in said

    uvloop.run(run())


def test_a_defect_in_the_engine_loop_ends_the_process_with_1(endpoint: str) -> None:
    async def run() -> None:
        sink = Recorder()
        async with fleet(endpoint, sink), process(settings(endpoint), build="broken") as started:
            await sink.until(lambda: bool(sink.hellos))
            code, said = await ended(started)
            assert code == 1
            assert "RuntimeError: a defect" in said
            await sink.until(lambda: bool(sink.lost_reasons))
            assert "the engine loop failed: RuntimeError" in sink.lost_reasons[0]

    uvloop.run(run())


def test_time_sharing_changes_no_token(endpoint: str) -> None:
    """The fake engine refuses rows whose blocks are not the state of their tokens, so that
    equal tokens with and without switches mean that no state was lost or mixed up."""

    async def run() -> None:
        sink = Recorder()
        models = (ModelSettings("m", "/nowhere"), ModelSettings("n", "/nowhere"))
        chosen = settings(endpoint, pool=Pool.COLD, models=models, fake=FakeCosts(step=0.001))
        async with fleet(endpoint, sink) as link, process(chosen):
            await sink.until(lambda: bool(sink.hellos))
            shapes = [([n] * (30 * n + 1), 40, "mn"[n % 2]) for n in range(24)]
            together = [submit(*shape) for shape in shapes]
            for call in together:
                link.send("one", call)
            await sink.until(lambda: len(sink.finished) + len(sink.failed) == len(shapes))
            await sink.until(sink.counters_show(live_calls=0, finished=len(shapes)))
            assert sink.snapshot is not None
            assert sink.snapshot.counters.switches > 2
            for shape, call in zip(shapes, together, strict=True):
                alone = submit(*shape)
                link.send("one", alone)
                await sink.until(lambda last=alone: last.call_id in sink.finished)
                assert sink.tokens[alone.call_id] == sink.tokens[call.call_id]

    uvloop.run(run())


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


def test_a_stubborn_process_and_its_children_are_killed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def child() -> int:
        lines = [message for message in caplog.messages if message.startswith("mule: child")]
        return int(lines[0].split()[-1]) if lines else 0

    async def run() -> None:
        states: list[LaunchState] = []
        spec = LaunchSpec("mule", (sys.executable, "-c", STUBBORN), {})
        launcher = Launcher([spec], states.append, QUICK, grace_seconds=0.3)
        await launcher.start()
        await Recorder().until(lambda: child() > 0)
        await launcher.stop()
        await Recorder().until(lambda: not alive(child()))
        assert states[-1].state is ProcessState.STOPPED
        assert "SIGKILL" in states[-1].reason
        assert not alive(states[-1].pid)

    uvloop.run(run())


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_an_interrupted_start_leaves_no_process(turns: int) -> None:
    async def run() -> None:
        states: list[LaunchState] = []
        spec = LaunchSpec("early", (sys.executable, "-c", "import time; time.sleep(60)"), {})
        launcher = Launcher([spec], states.append, QUICK)
        await launcher.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await launcher.stop()
        assert not any(alive(state.pid) for state in states if state.pid)
        assert not states or states[-1].state is ProcessState.STOPPED

    uvloop.run(run())


def test_a_command_that_does_not_exist_fails_once() -> None:
    async def run() -> None:
        states: list[LaunchState] = []
        launcher = Launcher([LaunchSpec("none", ("/no/such/file",), {})], states.append, QUICK)
        await launcher.start()
        await Recorder().until(lambda: bool(states))
        await launcher.stop()
        assert [state.state for state in states] == [ProcessState.FAILED]
        assert "/no/such/file cannot be started" in states[0].reason

    uvloop.run(run())


def test_an_endpoint_serves_one_gateway(endpoint: str) -> None:
    async def run() -> None:
        async with fleet(endpoint, Recorder()):
            with pytest.raises(FleetError, match="another gateway has it"):
                await Fleet(endpoint, frozenset(), Recorder()).start()
        async with fleet(endpoint, Recorder()):
            pass

    uvloop.run(run())


def test_endpoints_that_are_not_safe_are_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    cases = [
        (f"ipc://{open_folder}/link", "mode 700"),
        (f"ipc:///tmp/{'x' * 120}", "longer than 107 bytes"),
        ("tcp://0.0.0.0:5999", LINK_SECRET_VARIABLE),
        ("tcp://127.0.0.1:none", "set gateway.endpoint"),
    ]

    async def run(endpoint: str, message: str) -> None:
        with pytest.raises(FleetError, match=message):
            await Fleet(endpoint, frozenset(), Recorder()).start()

    for endpoint, message in cases:
        uvloop.run(run(endpoint, message))


def test_the_default_endpoint_is_short_and_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/" + "y" * 120)
    assert len(default_endpoint("a.yaml")) < 107
    assert default_endpoint("a.yaml") == default_endpoint(str(Path("a.yaml").resolve()))
    assert default_endpoint("a.yaml") != default_endpoint("b.yaml")


def test_every_cluster_file_has_a_folder_for_its_state(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    (tmp_path / "link.yaml").symlink_to(file)
    folder = default_state_folder("/cache", str(file))
    assert folder.parent == Path("/cache/state")
    assert folder == default_state_folder("/cache", str(tmp_path / "link.yaml"))
    assert folder != default_state_folder("/cache", str(tmp_path / "b.yaml"))


def test_only_holders_of_the_secret_join_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = zmq.curve_keypair()
    _, wrong = zmq.curve_keypair()

    async def run() -> None:
        sink = Recorder()
        endpoint = f"tcp://127.0.0.1:{_free_port()}"
        monkeypatch.setenv(LINK_SECRET_VARIABLE, secret.decode())
        async with fleet(endpoint, sink) as link:
            async with process(settings(endpoint)):
                await sink.until(lambda: bool(sink.hellos))
                call = submit([1], 2)
                link.send("one", call)
                await sink.until(lambda: call.call_id in sink.finished)
            for key in (wrong.decode(), ""):
                monkeypatch.setenv(LINK_SECRET_VARIABLE, key)
                async with process(settings(endpoint, name="two", orphan_seconds=1.0)) as started:
                    code, said = await ended(started)
                    assert code == 0
                    assert "orphaned" in said
            assert [hello.name for hello in sink.hellos] == ["one"]

    uvloop.run(run())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
