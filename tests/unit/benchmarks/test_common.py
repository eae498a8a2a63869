from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def common() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_common", FOLDER / "common.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("value", "code"), [(2.7, 0), (2.6999, 1)])
def test_a_report_has_the_common_form_and_fails_with_a_claim(
    common: ModuleType, tmp_path: Path, value: float, code: int
) -> None:
    claim = common.at_least("one stream (our target)", value, "x", 2.7)
    file = tmp_path / "report.json"
    rows = [{"case": "a", "tokens/s": 3.5}, {"case": "b", "other": 1}]
    assert common.write_report("engine", rows, [claim], file, {"threads": 2}) == code
    report = json.loads(file.read_text())
    assert list(report) == ["name", "environment", "rows", "claims"]
    assert report["rows"] == rows
    assert report["environment"]["threads"] == 2
    assert report["environment"]["packages"]["msgspec"] != "missing"
    assert report["claims"] == [
        {
            "name": "one stream (our target)",
            "value": value,
            "unit": "x",
            "target": ">= 2.7",
            "holds": code == 0,
        }
    ]
