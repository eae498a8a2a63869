from __future__ import annotations

from types import SimpleNamespace

import pytest

from alipes.cli import machine


def driver(status: int, devices: int) -> SimpleNamespace:
    def count(found: object) -> int:
        found._obj.value = devices  # type: ignore[attr-defined]
        return 0

    return SimpleNamespace(cuInit=lambda flags: status, cuDeviceGetCount=count)


@pytest.mark.parametrize(
    ("built", "status", "devices", "told"),
    [(True, 0, 3, 3), (True, 100, 3, 0), (False, 0, 3, 0)],
)
def test_devices_count_where_driver_and_torch_have_them(
    monkeypatch: pytest.MonkeyPatch, built: bool, status: int, devices: int, told: int
) -> None:
    monkeypatch.setattr(machine, "torch_has_cuda", lambda: built)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: driver(status, devices))
    assert machine.cuda_devices() == told


def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(machine, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    assert machine.cuda_devices() == 0
