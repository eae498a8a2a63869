"""A gateway that is killed in the middle of traffic, and the one that is started after it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

TOOLS = "You are an agent with tools. " * 40
NAMED = {"x-session-id": "task", "x-branch-id": "sub", "x-parent-branch-id": "main"}


class Client:
    """Calls of several sessions; those of ``chat`` say nothing of theirs."""

    def __init__(self, stack: Any) -> None:
        self.http = httpx.Client(base_url=stack.url, timeout=30, trust_env=False)

    def ask(self, path: str, body: dict[str, Any], headers: Any = None) -> httpx.Response:
        whole = {"model": "alpha", "ignore_eos": True, **body}
        reply = self.http.post(path, json=whole, headers=headers or {})
        assert reply.status_code == 200, reply.text
        return reply

    def chat(self, messages: list[dict[str, str]]) -> str:
        """One turn more, which ``messages`` get; the session that it was found to be of."""
        reply = self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]
        return reply.headers["x-alipes-session"]

    def respond(self, text: str, previous: str | None = None) -> tuple[str, str]:
        """Id and session of a stored response."""
        body = {"input": text, "previous_response_id": previous, "max_output_tokens": 8}
        reply = self.ask("/v1/responses", body)
        return reply.json()["id"], reply.headers["x-alipes-session"]

    def session(self, name: str) -> dict[str, Any]:
        """What is shown of it, apart from times and leases."""
        shown: dict[str, Any] = self.http.get(f"/v1/sessions/{name}").json()
        for one in (shown, *shown["branches"]):
            del one["idle_seconds"]
            one.pop("lease", None)
        return shown


def messages(task: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": TOOLS}, {"role": "user", "content": task}]


@contextlib.contextmanager
def traffic(url: str) -> Iterator[None]:
    """Sessions that go on until the gateway is gone."""

    def work(number: int) -> None:
        prompt = [number] * 100
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            for turn in range(10_000):
                body = {"model": "beta", "prompt": prompt, "max_tokens": 16, "ignore_eos": True}
                with contextlib.suppress(httpx.ReadTimeout):
                    client.post(
                        "/v1/completions", json=body, headers={"x-session-id": f"w{number}"}
                    )
                prompt = [*prompt, turn]

    def until_gone(number: int) -> None:
        with contextlib.suppress(httpx.HTTPError):
            work(number)

    threads = [threading.Thread(target=until_gone, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def saved(folder: Path) -> tuple[int, int]:
    """Sessions and responses in the file."""
    with contextlib.closing(sqlite3.connect(folder / "state" / "gateway.db")) as db:
        counts = (db.execute(f"SELECT count(*) FROM {one}") for one in ("session", "response"))
        sessions, responses = (int(count.fetchone()[0]) for count in counts)
        return sessions, responses


def warnings(stack: Any) -> list[str]:
    """What the gateway's log says of its state."""
    lines = stack.log.read_text().splitlines()
    return [line for line in lines if "WARNING" in line and "gateway.db" in line]


def test_sessions_and_responses_outlive_a_gateway_that_is_killed(
    tmp_path: Path,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    start_again: Callable[[Any], Any],
    stop: Callable[..., None],
) -> None:
    """The first one finds a file that is broken, and does without. Its instances stay."""
    del tiny_folders  # prepared
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "gateway.db").write_bytes(b"x" * 5000)
    stack = start(tmp_path)
    try:
        talks, named, first, last, deleted, shown = life(stack, tmp_path)
        (line,) = warnings(stack)
        assert "broken, set aside as *.broken: file is not a database" in line
        stack = start_again(stack)
        again(stack, talks, named, first, last, deleted, shown)
        assert warnings(stack) == [line]
        stop(stack)
    finally:
        stack.discard()


Talks = dict[str, list[dict[str, str]]]
Stored = tuple[str, str]


def life(stack: Any, folder: Path) -> tuple[Talks, Any, Stored, Stored, str, dict[str, Any]]:
    """Traffic, in the middle of which the gateway is killed."""
    client = Client(stack)
    with traffic(stack.url):
        talks = {}
        for task in ("mend it", "break it", "look at it"):
            talk = messages(task)
            name = client.chat(talk)
            assert client.chat(talk) == name
            talks[name] = talk
        assert len(talks) == 3
        body = {"prompt": [7] * 300, "max_tokens": 8}
        client.ask("/v1/completions", body, {"x-session-id": "task", "x-branch-id": "main"})
        named = client.ask("/v1/completions", body, NAMED).json()
        first = client.respond("hello " * 50)
        last = client.respond("go on", first[0])
        deleted, _ = client.respond("forget this")
        assert client.http.delete(f"/v1/responses/{deleted}").status_code == 200
        shown = {name: client.session(name) for name in (*talks, "task", first[1])}
        deadline = time.monotonic() + 10
        while saved(folder)[0] < len(shown) + 6 or saved(folder)[1] != 2:
            assert time.monotonic() < deadline, saved(folder)
            time.sleep(0.05)
        time.sleep(0.3)
        stack.process.kill()
        stack.process.wait()
    return talks, named, first, last, deleted, shown


def again(
    stack: Any,
    talks: Talks,
    named: Any,
    first: Stored,
    last: Stored,
    deleted: str,
    shown: dict[str, Any],
) -> None:
    client = Client(stack)
    assert {name: client.session(name) for name in shown} == shown
    for number in range(6):  # their calls came to nothing
        assert client.session(f"w{number}")["in_flight"] == 0
    for name, talk in talks.items():
        assert client.chat(talk) == name
        assert client.session(name)["calls"] == 3
        assert len(client.session(name)["branches"]) == 1
    body = {"prompt": [7] * 300, "max_tokens": 8}
    back = client.ask("/v1/completions", body, NAMED).json()
    assert back["choices"] == named["choices"]
    # All full blocks of the prompt: what the session had is where it was.
    assert back["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
    assert client.session("task")["calls"] == 3
    responses(client, first, last, deleted)


def responses(client: Client, first: Stored, last: Stored, deleted: str) -> None:
    reply = client.http.get(f"/v1/responses/{last[0]}")
    assert json.loads(reply.text)["previous_response_id"] == first[0]
    assert client.http.get(f"/v1/responses/{deleted}").status_code == 404
    branches = len(client.session(last[1])["branches"])
    # The next on the branch, and one that forks from it as the first was continued before.
    assert client.respond("and then?", last[0])[1] == last[1]
    assert len(client.session(last[1])["branches"]) == branches
    assert client.respond("or this?", first[0])[1] == last[1]
    assert len(client.session(last[1])["branches"]) == branches + 1
