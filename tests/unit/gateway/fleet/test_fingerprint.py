from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from alipes.gateway.fleet.fingerprint import code_digest, fingerprint
from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Targets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").symlink_to(tmp_path / "nowhere")
    return tmp_path


def digest(folder: Path, environ: dict[str, str] | None = None, **changes: Any) -> str:
    settings = InstanceSettings(
        "cold-0", Pool.COLD, (ModelSettings("m", str(folder)),), Targets(), "ipc:///link"
    )
    given: dict[str, Any] = {"code": "c", "argv": ("python", "x"), "env": {"B": "2", "A": "1"}}
    for name in given.keys() & changes.keys():
        given[name] = changes.pop(name)
    changed = msgspec.structs.replace(settings, **changes)
    return fingerprint(settings=changed, environ=environ or {}, **given)


def test_it_is_the_same_for_the_same_process(folder: Path) -> None:
    assert digest(folder) == digest(folder, env={"A": "1", "B": "2"})
    assert digest(folder) == digest(folder, environ={"HOME": "/root", "PATH": "/bin"})
    assert digest(folder, {"CUDA_VISIBLE_DEVICES": "0"}, env={"CUDA_VISIBLE_DEVICES": "1"}) == (
        digest(folder, env={"CUDA_VISIBLE_DEVICES": "1"})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"code": "d"},
        {"argv": ("python", "y")},
        {"env": {"A": "1"}},
        {"environ": {"CUDA_VISIBLE_DEVICES": "1"}},
        {"environ": {"ALIPES_LINK_SECRET": "other"}},
        {"endpoint": "ipc:///other"},
        {"host_bytes": 1},
        {"models": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_makes_another_process_makes_another_one(
    folder: Path, change: dict[str, Any]
) -> None:
    assert digest(folder, **change) != digest(folder)


def test_so_do_other_files_of_a_model(folder: Path) -> None:
    seen = [digest(folder)]
    (folder / "more").write_text("")
    seen.append(digest(folder))
    os.utime(folder / "config.json", ns=(0, 0))
    seen.append(digest(folder))
    (folder / "config.json").write_text("{ }")
    os.utime(folder / "config.json", ns=(0, 0))
    seen.append(digest(folder))
    seen.append(digest(folder / "missing"))
    assert len(set(seen)) == len(seen)


def test_code_has_a_digest_of_its_own() -> None:
    assert code_digest() == code_digest()
    assert len(code_digest()) == 32
