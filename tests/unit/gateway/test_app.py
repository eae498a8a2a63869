"""A gateway that goes on under other settings."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
from msgspec.structs import replace

from alipes.gateway.app import Gateway
from alipes.gateway.calls.events import CallFailure, FailureKind
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.config import (
    ApiKey,
    Cluster,
    GatewaySettings,
    InstanceEntry,
    Limits,
    ModelEntry,
    RandomWeights,
)
from alipes.gateway.inbox import Inbox
from alipes.gateway.routing.identity import Claim
from alipes.instance.contract import Pool, Sampling

KEY = "k" * 20


def cluster_of(**gateway: Any) -> Cluster:
    return Cluster(
        models={"alpha": ModelEntry(RandomWeights("llama", "tiny"))},
        instances={"cold-0": InstanceEntry(Pool.COLD, ("alpha",))},
        gateway=GatewaySettings(**gateway),
    )


class Events(Inbox):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []

    def post(self, index: int, event: Any) -> None:
        self.all.append(event)


def request(session: str) -> CallRequest:
    return CallRequest(
        model="alpha",
        tenant="",
        tokens=np.arange(100, dtype=np.int32),
        max_tokens=4,
        sampling=Sampling(),
        claim=Claim(session),
    )


def test_keys_and_limits_change_and_calls_stay() -> None:
    async def run() -> None:
        gateway = Gateway(cluster_of(limits=Limits(queue_depth=1)), {}, "ipc:///nowhere")
        events = Events()
        try:
            gateway.dispatcher.submit(request("first"), 0, events)
            gateway.dispatcher.submit(request("second"), 1, events)
            (refused,) = events.all
            assert refused.kind is FailureKind.OVERLOADED
            limits = Limits(queue_depth=2, queue_timeout=60.0)
            # Models and instances are none of it.
            changed = cluster_of(limits=limits, api_keys=(ApiKey(KEY, tenant="t"),))
            gateway.configure(replace(changed, instances={}, models={}))
            gateway.dispatcher.submit(request("third"), 2, events)
            assert len(events.all) == 1
            assert len(gateway.dispatcher.book.waiting) == 2
            assert list(gateway.service.cluster.instances) == ["cold-0"]
            gateway.configure(replace(changed, gateway=replace(changed.gateway, limits=Limits())))
            assert len(gateway.dispatcher.book.waiting) == 2
            assert await statuses(gateway) == [401, 200]
        finally:
            stopping = CallFailure(FailureKind.STOPPING, "test over")
            gateway.dispatcher.fail_all(stopping)
            gateway.dispatcher.close()
        assert events.all[1:] == [stopping] * 2

    asyncio.run(run())


async def statuses(gateway: Gateway) -> list[int]:
    """Of a request without a key, and of one with it."""
    transport = httpx.ASGITransport(app=gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        replies = [
            await client.get("/v1/models", headers=headers)
            for headers in ({}, {"authorization": f"Bearer {KEY}"})
        ]
    return [reply.status_code for reply in replies]
