from __future__ import annotations

import sys
from pathlib import Path

import pytest

from alipes.instance.memory.preload import LIBRARY, parking_environment, torch_has_cuda


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch for CUDA 13, and the library for two versions of CUDA."""
    for name in ("torch", "torch_memory_saver"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('nothing imports this')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    version = (
        "__version__ = '2.13.0+cu126'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    (tmp_path / "torch" / "version.py").write_text(version)
    for major in (12, 13):
        (tmp_path / f"{LIBRARY}_cu{major}.abi3.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_library_for_this_cuda_is_loaded_first(packages: Path) -> None:
    library = str(packages / f"{LIBRARY}_cu13.abi3.so")
    assert parking_environment({}) == {"LD_PRELOAD": library}
    others = {"LD_PRELOAD": "/lib/one.so:/lib/two.so"}
    assert parking_environment(others) == {"LD_PRELOAD": f"{library}:/lib/one.so:/lib/two.so"}


def test_nothing_where_there_is_no_such_cuda(packages: Path) -> None:
    (packages / f"{LIBRARY}_cu13.abi3.so").unlink()
    assert parking_environment({}) == {}
    assert torch_has_cuda()
    (packages / "torch" / "version.py").write_text("cuda: Optional[str] = None\n")
    assert parking_environment({}) == {}
    assert not torch_has_cuda()


def test_nothing_where_it_is_not_installed(packages: Path) -> None:
    (packages / "torch_memory_saver" / "__init__.py").unlink()
    (packages / "torch_memory_saver").rmdir()
    assert parking_environment({}) == {}
