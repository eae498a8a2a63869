"""A pass-through before the gateway that puts words into the model's mouth.

The reply to a call is chosen by a plan, from what the call's body has, so that nothing has to be
remembered of what a client may send again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx

SHELLS: Final = ("Bash", "bash", "exec_command", "shell_command", "shell")
CALLS: Final = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
STOP_ID: Final = 2
PROMPT: Final = "run the steps"
"""What a client is asked; a conversation that has it is the main one."""
_DROPPED: Final = ("host", "content-length", "accept-encoding", "connection", "transfer-encoding")


@dataclass(frozen=True)
class Ask:
    """A call's body: the tools' schemas by name, how many results of tools it has, its text."""

    tools: dict[str, Any]
    results: int
    text: str

    @property
    def shell(self) -> str | None:
        return next((name for name in SHELLS if name in self.tools), None)

    @property
    def main(self) -> bool:
        return PROMPT in self.text

    def runs(self, command: str) -> str:
        """The words that have the client's shell run this."""
        assert self.shell is not None
        return self.call(self.shell, **_arguments(self.tools[self.shell], command))

    def call(self, name: str, **arguments: Any) -> str:
        for required in self.tools[name].get("required", []):
            arguments.setdefault(required, "as asked")
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Seen:
    """One call that a client made: what it said, what came of it."""

    path: str
    ask: Ask
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def session(self) -> str:
        return self.headers["x-alipes-session"]


Plan = Callable[[Ask], str]


class Script:
    """Serves at ``url`` until closed; ``before`` is told of each call before it is passed on."""

    def __init__(
        self, gateway: str, model: str, plan: Plan, before: Callable[[Ask], None] | None = None
    ) -> None:
        self.gateway, self.model, self.plan, self.before = gateway, model, plan, before
        self.seen: list[Seen] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass(b"")

            def do_HEAD(self) -> None:
                self._pass(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                self._pass(body)

            def _pass(self, body: bytes) -> None:
                path = self.path.partition("?")[0]
                body, seen = script.scripted(path, body)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _DROPPED}
                url = script.gateway + path
                with httpx.stream(
                    self.command, url, content=body or None, headers=headers, timeout=120
                ) as response:
                    if seen is not None:
                        seen.status = response.status_code
                        seen.headers = dict(response.headers)
                    self.send_response(response.status_code)
                    for name, value in response.headers.items():
                        if name not in ("transfer-encoding", "content-length", "connection"):
                            self.send_header(name, value)
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    for piece in response.iter_raw():
                        if seen is not None:
                            seen.body += piece
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    if self.command != "HEAD":
                        self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def scripted(self, path: str, raw: bytes) -> tuple[bytes, Seen | None]:
        if path not in CALLS:
            return raw, None
        body = json.loads(raw)
        ask = Ask(dict(_tools(body)), _results(body), json.dumps(body))
        seen = Seen(path, ask)
        self.seen.append(seen)
        if self.before is not None:
            self.before(ask)
        body["model"] = self.model
        body["forced_token_ids"] = [*self._ids(self.plan(ask)), STOP_ID]
        return json.dumps(body).encode(), seen

    def _ids(self, text: str) -> list[int]:
        asked = {"model": self.model, "prompt": text}
        reply = httpx.post(f"{self.gateway}/tokenize", json=asked, timeout=30)
        return list(reply.json()["tokens"])


def _tools(body: Any) -> list[tuple[str, Any]]:
    found = []
    for tool in body.get("tools") or []:
        described = tool.get("function", tool)
        schema = described.get("input_schema") or described.get("parameters") or {}
        if "name" in described:
            found.append((described["name"], schema))
    return found


def _results(body: Any) -> int:
    """Tool results in a body of any dialect."""
    said = body.get("messages") or body.get("input") or []
    count = 0
    for message in said if isinstance(said, list) else []:
        count += message.get("role") == "tool"
        count += message.get("type") == "function_call_output"
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            count += isinstance(block, dict) and block.get("type") == "tool_result"
    return count


def _arguments(schema: Any, command: str) -> dict[str, Any]:
    properties = schema.get("properties", {})
    made: dict[str, Any] = {}
    for name in ("command", "cmd"):
        if name in properties:
            plain = properties[name].get("type") != "array"
            made[name] = command if plain else ["bash", "-lc", command]
    return made
