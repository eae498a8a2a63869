import socket
import subprocess
from pathlib import Path

import pytest

from alipes.cli import demo
from alipes.cli.init import write_default
from alipes.gateway.config import load_cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_free_port_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = free_port()
    monkeypatch.setattr(demo, "PORT", usual)
    file = tmp_path / "alipes.yaml"
    file.write_text(f"port: {usual}")
    assert demo.choose_port(file) == usual
    assert file.read_text() == f"port: {usual}"


def test_a_taken_port_is_replaced_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alipes.yaml"
    write_default(file, force=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = int(taken.getsockname()[1])
        monkeypatch.setattr(demo, "PORT", usual)
        file.write_text(file.read_text().replace("port: 8000", f"port: {usual}"))
        port = demo.choose_port(file)
    assert port != usual
    assert load_cluster(file).gateway.port == port


@pytest.mark.parametrize("ready", [True, False])
def test_the_stack_itself_says_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    monkeypatch.setattr(demo, "WORK", tmp_path)
    said = "listening\nready: http://127.0.0.1:8000\n" if ready else "cannot listen: in use\n"
    (tmp_path / "serve.log").write_text(said)
    with subprocess.Popen(["sleep", "60" if ready else "0"]) as process:
        if ready:
            demo.wait_ready(process)
            process.kill()
        else:
            with pytest.raises(demo.DemoError, match="cannot listen: in use"):
                demo.wait_ready(process)


def test_the_demo_uses_what_the_default_file_and_the_repository_hold(tmp_path: Path) -> None:
    file = tmp_path / "alipes.yaml"
    write_default(file, force=False)
    demo.keep_state_here(file)
    cluster = load_cluster(file)
    assert cluster.state.folder == str(tmp_path / "state")
    assert set(demo.MODELS.split(",")) <= set(cluster.models)
    assert cluster.gateway.port == demo.PORT
    assert demo.TRAJECTORY.is_file()


def test_a_second_demo_replaces_the_replay_of_the_first() -> None:
    assert "--overwrite" in demo.replay_command("http://127.0.0.1:8000")
