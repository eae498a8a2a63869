"""A live router's decisions, made again by a router as the simulator builds it.

A real gateway with instances of the fake engine serves sessions over HTTP, more of them than there
is room for. All that its router was asked and told, with the times, is written as JSON; a fresh
router that gets the same must answer the same, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import msgspec
import pytest

from alipes.cli.cluster import load, prepare_models
from alipes.cli.serve import launch_specs
from alipes.gateway import app
from alipes.gateway.app import Gateway
from alipes.gateway.routing.router import Router
from alipes.gateway.text.model import ModelText
from alipes.replay.sim.build import Fleet, router_of
from alipes.replay.sim.hardware import load_hardware
from alipes.replay.sim.scenario import InstanceSpec, Setup

from .journal import INPUTS, RecordingRouter, replay

MODELS = ("alpha", "beta")
FAKE = {"step": 0.01, "switch": 0.1, "prefill_token": 0.0001, "restore_token": 0.00001}


def cluster_file(folder: Path, port: int) -> Path:
    instance = {"pool": "cold", "models": list(MODELS), "engine": "fake", "fake": FAKE}
    instance |= {"max_running": 2, "max_waiting": 2, "host_bytes": "64MiB"}
    families = zip(MODELS, ("llama", "qwen3"), strict=True)
    cluster = {
        "models": {
            name: {"source": {"random": {"family": family, "size": "tiny"}}}
            for name, family in families
        },
        "instances": {"i0": instance, "i1": instance},
        "gateway": {
            "port": port,
            "endpoint": f"ipc://{folder}/link",
            "limits": {"queue_timeout": 3.0},
        },
        "routing": {"lease_seconds": 0.5},
    }
    path = folder / "alipes.yaml"
    path.write_text(json.dumps(cluster))
    return path


async def session(client: httpx.AsyncClient, number: int) -> list[int]:
    """Four calls, each of which goes on from the one before."""
    statuses = []
    prompt = [7] * 128 + [number] * (64 * (number % 4 + 1))
    for turn in range(4):
        body = {"model": MODELS[number % 2], "prompt": prompt, "max_tokens": 12}
        body |= {"ignore_eos": True}
        answer = await client.post(
            "/v1/completions", json=body, headers={"x-session-id": f"s{number}"}
        )
        statuses.append(answer.status_code)
        prompt = [*prompt, *[9 + turn] * 70]
        await asyncio.sleep(0.05 * (number % 3))
    return statuses


async def live(gateway: Gateway, url: str) -> Counter[int]:
    await gateway.start()
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            while not gateway.ready:
                await asyncio.sleep(0.02)
            answers = await asyncio.gather(*(session(client, n) for n in range(14)))
    finally:
        await gateway.stop()
    return Counter(status for statuses in answers for status in statuses)


def test_every_method_of_a_router_is_recorded() -> None:
    public = {name for name in vars(Router) if not name.startswith("_")}
    assert public == set(INPUTS)


def test_a_simulated_router_decides_as_a_live_one(
    tmp_path: Path,
    tiny_folders: dict[str, Path],
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del tiny_folders  # prepared
    tmp_path.chmod(0o700)
    file = cluster_file(tmp_path, free_port)
    cluster = load(file)
    texts = {
        name: ModelText.load(name, folder)
        for name, folder in prepare_models(cluster, MODELS).items()
    }
    monkeypatch.setattr(app, "Router", RecordingRouter)
    specs = launch_specs(cluster, file)
    gateway = Gateway(cluster, texts, cluster.gateway.endpoint, specs)
    statuses = asyncio.run(live(gateway, f"http://127.0.0.1:{free_port}"))
    assert statuses[200] > 40
    recorded = gateway.router
    assert isinstance(recorded, RecordingRouter)

    for method, then, now in replay(simulated(lease_seconds=0.5), recorded.lines):
        assert now == then, method
    check_worth(recorded.lines)
    # Another policy would have been noticed.
    others = replay(simulated(lease_seconds=0.0), recorded.lines)
    assert any(now != then for _, then, now in others)


def simulated(lease_seconds: float) -> Router:
    setup = Setup(lease_seconds=lease_seconds, queue_depth=256, queue_timeout=3.0)
    return router_of(Fleet(load_hardware("b200-tp4"), setup, [InstanceSpec(MODELS, count=2)]))


def check_worth(lines: list[bytes]) -> None:
    """The recording has decisions of several kinds in it."""
    asked = Counter(msgspec.json.decode(line)["method"] for line in lines)
    assert asked["place"] >= 50
    assert asked["complete"] >= 40
    assert asked["updated"] >= 10
    assert asked["stored"] >= 40
    written = b"".join(lines)
    for reason in (b"lease", b"switch", b"active", b"behind"):
        assert reason in written
