"""Stacks of cold instances with the fake engine, asked as agents ask: one call after another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

Condition = Callable[[], Any]
Serve = Callable[..., AbstractContextManager["Serving"]]


@dataclass
class Reply:
    """What one call gave; filled in by a thread where the call was made in the background."""

    status: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    instance: str = ""
    reason: str = ""
    thread: threading.Thread | None = None

    @property
    def text(self) -> str:
        return str(self.body["choices"][0]["text"])

    @property
    def cached_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    def wait(self, seconds: float = 30) -> Reply:
        assert self.thread is not None
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the call has no end"
        assert self.status == 200, self.body
        return self


@dataclass
class Serving:
    """A running stack: ``stack`` is that of the integration tests' conftest."""

    stack: Any
    client: httpx.Client

    def ask(
        self, model: str, prompt: list[int], session: str = "", tokens: int = 4, **headers: str
    ) -> Reply:
        """One completion of token ids, greedy; fails unless it succeeds."""
        reply = Reply()
        self._ask(reply, model, prompt, session, tokens, headers)
        assert reply.status == 200, reply.body
        return reply

    def begin(
        self, model: str, prompt: list[int], session: str = "", tokens: int = 4, **headers: str
    ) -> Reply:
        """The same in the background; see ``Reply.wait``."""
        reply = Reply()
        work = (reply, model, prompt, session, tokens, headers)
        reply.thread = threading.Thread(target=self._ask, args=work, daemon=True)
        reply.thread.start()
        return reply

    def _ask(
        self,
        reply: Reply,
        model: str,
        prompt: list[int],
        session: str,
        tokens: int,
        headers: dict[str, str],
    ) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        named = {"x-session-id": session} if session else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            response = self.client.post("/v1/completions", json=body, headers=named)
        except httpx.HTTPError as error:
            reply.body = {"error": repr(error)}
            return
        reply.instance = response.headers.get("x-alipes-instance", "")
        reply.reason = response.headers.get("x-alipes-reason", "")
        reply.body = response.json()
        reply.status = response.status_code

    def admin(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.get("/admin/instances").json()
        return shown

    def instance(self, name: str) -> dict[str, Any]:
        return next(one for one in self.admin()["instances"] if one["name"] == name)

    def counter(self, name: str) -> int:
        """Total over all instances."""
        shown = self.admin()["instances"]
        return sum(one["snapshot"]["counters"][name] for one in shown if one["snapshot"])

    def last_candidates(self) -> dict[str, dict[str, Any]]:
        """What the last placement knew of each instance."""
        candidates = self.admin()["decisions"][-1]["candidates"]
        return {one["instance"]: one for one in candidates}

    def has_call(self, name: str) -> bool:
        return bool(self.instance(name)["status"]["placed"])

    def until(self, condition: Condition, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, json.dumps(self.admin())[:4000]
            time.sleep(0.02)

    def all_up(self) -> bool:
        return all(one["status"]["why"] == "ok" for one in self.admin()["instances"])

    def nothing_held(self) -> bool:
        """No call, lease, block or slab is held by anything any more."""
        admin = self.admin()
        held = admin["live_calls"] + admin["leases"]["live"] + sum(admin["queued"].values())
        for one in admin["instances"]:
            if not one["snapshot"]:
                return False
            occupancy, counters = one["snapshot"]["occupancy"], one["snapshot"]["counters"]
            held += counters["live_calls"] + occupancy["held"] + occupancy["host_held"]
            held += one["status"]["placed"]
            assert occupancy["free"] + occupancy["cached"] + occupancy["held"] == occupancy["total"]
        return held == 0


@pytest.fixture
def serve(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    stop: Callable[..., None],
) -> Serve:
    """A context manager that serves a cluster given as the file would have it: ``instances`` by
    name, each changing the defaults below, and more sections. At its end everything must be
    free, and the processes must end in order."""

    @contextmanager
    def serving(
        instances: dict[str, dict[str, Any]], **sections: dict[str, Any]
    ) -> Iterator[Serving]:
        cold = {"pool": "cold", "models": ["alpha", "beta"], "engine": "fake"}
        gateway = {"port": 0, "endpoint": "", **sections.pop("gateway", {})}
        cluster = {
            "models": {
                name: {"source": {"random": {"family": family, "size": "tiny"}}}
                for name, family in (("alpha", "llama"), ("beta", "qwen3"), ("gamma", "llama"))
            },
            "instances": {name: cold | changes for name, changes in instances.items()},
            "gateway": gateway,
            **sections,
        }
        text = json.dumps(cluster).replace("{", "{{").replace("}", "}}")
        text = text.replace('"port": 0', '"port": {port}').replace(
            '"endpoint": ""', '"endpoint": "{endpoint}"'
        )
        stack = start(tmp_path_factory.mktemp("sessions"), text)
        with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
            running = Serving(stack, client)
            try:
                running.until(running.all_up)
                yield running
                running.until(running.nothing_held)
                stop(running.stack)
            finally:
                running.stack.discard()

    return serving
