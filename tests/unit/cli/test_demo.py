import socket
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


def test_the_demo_uses_what_the_default_file_and_the_repository_hold(tmp_path: Path) -> None:
    file = tmp_path / "alipes.yaml"
    write_default(file, force=False)
    cluster = load_cluster(file)
    assert set(demo.MODELS.split(",")) <= set(cluster.models)
    assert cluster.gateway.port == demo.PORT
    assert demo.TRAJECTORY.is_file()
