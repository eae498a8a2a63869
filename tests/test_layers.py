"""Imports point down, and policy is free of clocks, sockets and randomness."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("cli", "replay", "gateway", "planner", "instance", "kernels")

# What a layer may import of the layers below it, where that is not everything.
ALLOWED = {
    "replay": (
        "alipes.gateway.calls",
        "alipes.gateway.routing",
        "alipes.gateway.strict",
        "alipes.planner",
        "alipes.instance.contract",
        "alipes.instance.engine.protocol",
        "alipes.instance.memory",
        "alipes.instance.scheduler",
    ),
    "gateway": ("alipes.planner", "alipes.instance.contract"),
    "planner": ("alipes.instance.contract",),
}

# Below the layers: memory and scheduling know engines by their protocol, models by their specs.
POLICY = ("alipes.instance.contract", "alipes.instance.engine.protocol", "alipes.instance.memory")
PARTS = {"instance/memory": POLICY, "instance/scheduler": (*POLICY, "alipes.instance.scheduler")}

SANS_IO = (
    "gateway/calls",
    "gateway/routing",
    "planner",
    "instance/scheduler",
    "instance/memory/agreement.py",
    "instance/memory/blocks.py",
    "instance/memory/prefix.py",
    "instance/memory/plan.py",
    "instance/memory/specs.py",
    "instance/memory/staging.py",
    "instance/memory/staging_plan.py",
    "replay/compare.py",
    "gateway/telemetry/recording.py",
    "replay/conversation.py",
    "replay/pacing.py",
    "replay/plan.py",
    "replay/progress.py",
    "replay/report.py",
    "replay/reports",
    "replay/sim/clock.py",
    "replay/sim/cluster.py",
    "replay/sim/copier.py",
    "replay/sim/costs.py",
    "replay/sim/devices.py",
    "replay/sim/instance.py",
    "replay/sim/calls.py",
    "replay/sim/measure.py",
    "replay/sim/node.py",
    "replay/sim/sensitivity.py",
    "replay/sim/staging.py",
    "replay/sim/timed_scheduler.py",
    "replay/sim/timeline.py",
    "replay/sim/validate.py",
    "replay/shorten.py",
    "replay/stats.py",
    "replay/stream.py",
    "replay/tokens.py",
)
IMPURE = frozenset(
    ("asyncio", "httpx", "logging", "random", "socket", "threading", "time", "torch", "zmq")
)


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a module of ``package``, names
    taken from a package included: ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def layer_faults(path: str, source: str) -> list[str]:
    """Imports of a module (its ``path`` relative to the root) that its layer does not allow."""
    layer = path.split("/", 1)[0]
    below = tuple(f"alipes.{name}" for name in LAYERS[LAYERS.index(layer) + 1 :])
    part = "/".join(path.split("/")[:2])
    allowed = PARTS.get(part) or (f"alipes.{layer}", *ALLOWED.get(layer, below))
    package = ".".join(["alipes", *path.split("/")[:-1]])
    return [
        f"{path}:{line}: {layer} may not import {name}"
        for line, name in imports(ast.parse(source), package)
        if under(name, "alipes") and not any(under(name, one) for one in allowed)
    ]


def purity_faults(path: str, source: str) -> list[str]:
    """Imports and calls in a policy module that reach outside it, or draw from a generator
    without a seed."""
    tree = ast.parse(source)
    faults = [
        f"{path}:{line}: policy may not import {name}"
        for line, name in imports(tree, "alipes")
        if name.split(".", 1)[0] in IMPURE and not name.startswith("random.Random")
    ]
    for node in ast.walk(tree):
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            faults.append(f"{path}:{node.lineno}: policy may not await")
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            if called in ("Random", "default_rng"):
                faults.append(f"{path}:{node.lineno}: {called}() has no seed")
    return faults


def modules(*places: str) -> list[Path]:
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found.extend([path] if path.suffix == ".py" else sorted(path.rglob("*.py")))
    return found


def faults_in(paths: list[Path], check: object) -> list[str]:
    assert callable(check)
    return [
        fault
        for path in paths
        for fault in check(path.relative_to(ROOT).as_posix(), path.read_text())
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer: str) -> None:
    paths = modules(layer)
    assert paths, f"{layer}/ holds no module"
    assert faults_in(paths, layer_faults) == []


@pytest.mark.parametrize("place", SANS_IO)
def test_policy_is_sans_io(place: str) -> None:
    paths = modules(place)
    assert paths, f"{place} holds no module"
    assert faults_in(paths, purity_faults) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/a.py", "import alipes.instance.contract"),
        ("instance/a.py", "from alipes.gateway import config"),
        ("instance/a.py", "def f():\n    from alipes import gateway"),
        ("gateway/a.py", "from alipes.instance.loop import EngineLoop"),
        ("gateway/a.py", "from alipes.instance import loop"),
        ("gateway/a.py", "from alipes import instance"),
        ("gateway/api/a.py", "from ...instance import loop"),
        ("gateway/a.py", "import alipes.instance.contractual"),
        ("gateway/a.py", "import alipes.replay.plan"),
        ("replay/a.py", "from alipes.gateway.app import build_app"),
        ("replay/a.py", "from alipes.instance.loop import EngineLoop"),
        ("planner/a.py", "from alipes.kernels import table"),
        ("instance/memory/a.py", "from alipes.instance.engine.native.config import ModelConfig"),
        ("instance/memory/a.py", "from alipes.instance.scheduler.work import Run"),
        ("instance/scheduler/a.py", "from alipes.instance.loop import EngineLoop"),
    ],
)
def test_a_layer_fault_is_caught(path: str, source: str) -> None:
    assert len(layer_faults(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cli/a.py", "from alipes.gateway.app import build_app"),
        ("replay/a.py", "from alipes.gateway.routing.router import Router"),
        ("gateway/a.py", "from alipes.instance.contract import Submit\nimport asyncio"),
        ("gateway/api/a.py", "from ..config import Cluster\nfrom . import errors"),
        ("instance/a.py", "from alipes.kernels.table import ops\nimport torch"),
        ("instance/scheduler/a.py", "from alipes.instance.engine.protocol import Row"),
    ],
)
def test_what_is_allowed_is_not_a_fault(path: str, source: str) -> None:
    assert layer_faults(path, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic_ns",
        "import torch.nn",
        "def f():\n    import asyncio",
        "import random",
        "from random import Random\nRandom()",
        "import numpy as np\nnp.random.default_rng()",
        "async def f(): ...",
    ],
)
def test_an_impure_policy_is_caught(source: str) -> None:
    assert len(purity_faults("planner/a.py", source)) == 1


def test_a_seeded_generator_is_pure() -> None:
    assert purity_faults("planner/a.py", "from random import Random\nRandom(7)") == []
