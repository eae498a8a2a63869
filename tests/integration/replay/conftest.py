"""A small OpenAI-compatible server on a real socket, in a thread, for replay tests."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import pytest


@dataclass
class Seen:
    """What clients sent: (headers, raw body) of each chat call in order of arrival, the texts
    that were counted, how many connections were opened, and the path of each call."""

    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    connections: int = 0
    paths: list[str] = field(default_factory=list)


@dataclass
class Behaviour:
    """How the server acts. ``fail`` may answer a call with (status, message) instead, or return
    None; ``cut`` ends streams without [DONE]; a token is a word of the text. ``fields`` are those
    that it takes, if not any; ``refusal`` is the error that it has for forced completions,
    ``forced_below`` the bound of the ids that it forces."""

    context: int = 100_000
    tokenize: bool = True
    fail: Callable[[dict[str, Any]], tuple[int, str] | None] = lambda body: None
    cut: bool = False
    before_first: Callable[[], None] = lambda: None
    key: str = ""
    context_told: bool = True
    fields: frozenset[str] | None = None
    refusal: dict[str, str] | None = None
    forced_below: int = 0


class Serve(Protocol):
    def __call__(self, **behaviour: Any) -> AbstractContextManager[tuple[str, Seen]]: ...


@pytest.fixture
def serve() -> Serve:
    """A context manager that serves with the ``Behaviour`` of the keywords given; it yields the
    base URL and what was seen."""
    return lambda **behaviour: _serving(Behaviour(**behaviour))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Clients open many connections at once; beyond the queue the kernel drops them.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is what some tests are about; other errors are shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def _serving(behaviour: Behaviour) -> Iterator[tuple[str, Seen]]:
    seen = Seen()
    server = _Server(("127.0.0.1", 0), _handler(behaviour, seen))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(behaviour: Behaviour, seen: Seen) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            seen.connections += 1

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if behaviour.key and self.headers.get("authorization") != f"Bearer {behaviour.key}":
                return self._json(401, {"error": {"message": "no such key"}})
            names = ("small", "large")
            told = {"max_model_len": behaviour.context} if behaviour.context_told else {}
            data = [{"id": name, **told} for name in names]
            return self._json(200, {"object": "list", "data": data})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            body = json.loads(raw)
            if self.path == "/tokenize":
                return self._tokenize(body)
            unknown = set(body) - behaviour.fields if behaviour.fields is not None else set()
            if unknown:
                return self._json(422, {"error": {"message": f"unknown: {sorted(unknown)}"}})
            if behaviour.refusal is not None and "forced_token_ids" in body:
                return self._json(400, {"error": behaviour.refusal})
            forced = body.get("forced_token_ids", [])
            if behaviour.forced_below and max(forced, default=0) >= behaviour.forced_below:
                problem = {"message": "no such id", "param": "forced_token_ids"}
                return self._json(400, {"error": problem})
            if not body.get("stream"):
                return self._json(200, {"choices": [{"text": "w"}]})
            seen.calls.append((dict(self.headers.items()), raw))
            seen.paths.append(self.path)
            problem = behaviour.fail(body)
            if problem:
                return self._json(problem[0], {"error": {"message": problem[1]}})
            return self._stream(body)

        def _tokenize(self, body: dict[str, Any]) -> None:
            if not behaviour.tokenize:
                return self._json(404, {"detail": "Not Found"})
            seen.counted.append(body["prompt"])
            words = body["prompt"].split()
            ids = [sum(word.encode()) for word in words]
            return self._json(200, {"count": len(words), "tokens": ids})

        def _stream(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.send_header("x-alipes-instance", "hot0")
            self.end_headers()
            self._chunk(": keep-alive\n\n")
            self._event({"choices": [{"delta": {"role": "assistant"}}]})
            behaviour.before_first()
            chat = "messages" in body
            for index in range(body["max_tokens"]):
                word = f"w{index} "
                part = {"delta": {"content": word}} if chat else {"text": word}
                self._event({"choices": [part]})
            self._event({"choices": [{"finish_reason": "length"}]})
            if chat:
                prompt = sum(len(message["content"].split()) for message in body["messages"])
            else:
                prompt = len(body["prompt"])
            usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
            usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
            self._event({"choices": [], "usage": usage})
            if not behaviour.cut:
                self._chunk("data: [DONE]\n\n")
            self._chunk("")

        def _event(self, value: object) -> None:
            self._chunk(f"data: {json.dumps(value)}\n\n")

        def _chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _json(self, status: int, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
