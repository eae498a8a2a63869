"""A pass-through before the gateway that puts words into the model's mouth.

The reply to a call is chosen by how many tool results its body has, so that nothing has to be
remembered: the first ones call a shell tool of the client, the last one says that all is done.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx

SHELLS: Final = ("Bash", "bash", "exec_command", "shell_command", "shell")
CALLS: Final = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
STOP_ID: Final = 2
DONE: Final = "All is done here."
_DROPPED: Final = ("host", "content-length", "accept-encoding", "connection", "transfer-encoding")


@dataclass
class Seen:
    """One call that a client made: what it said, what came of it."""

    path: str
    step: int
    side: bool
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class Script:
    """Serves at ``url`` until closed; ``steps`` tool calls come before the end."""

    def __init__(self, gateway: str, model: str, steps: int) -> None:
        self.gateway, self.model, self.steps = gateway, model, steps
        self.seen: list[Seen] = []
        self.http = httpx.Client(base_url=gateway, timeout=120)
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
                with script.http.stream(
                    self.command, path, content=body or None, headers=headers
                ) as response:
                    self.send_response(response.status_code)
                    for name, value in response.headers.items():
                        if name not in ("transfer-encoding", "content-length", "connection"):
                            self.send_header(name, value)
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    for piece in response.iter_raw():
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    if self.command != "HEAD":
                        self.wfile.write(b"0\r\n\r\n")
                    if seen is not None:
                        seen.status = response.status_code
                        seen.headers = dict(response.headers)

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
        tools = dict(_tools(body))
        shell = next((name for name in SHELLS if name in tools), None)
        seen = Seen(path, _results(body), side=shell is None)
        self.seen.append(seen)
        if shell is None:
            reply = "ok"
        elif seen.step >= self.steps:
            reply = DONE
        else:
            arguments = json.dumps(_arguments(tools[shell], f"echo step {seen.step}"))
            reply = f'<tool_call>\n{{"name": "{shell}", "arguments": {arguments}}}\n</tool_call>'
        body["model"] = self.model
        body["forced_token_ids"] = [*self._ids(reply), STOP_ID]
        return json.dumps(body).encode(), seen

    def _ids(self, text: str) -> list[int]:
        asked = {"model": self.model, "prompt": text}
        return list(self.http.post("/tokenize", json=asked).json()["tokens"])


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
    """What the tool needs, to run ``command``."""
    properties = schema.get("properties", {})
    made: dict[str, Any] = {}
    for name in ("command", "cmd"):
        if name in properties:
            plain = properties[name].get("type") != "array"
            made[name] = command if plain else ["bash", "-lc", command]
    for name in schema.get("required", []):
        made.setdefault(name, "as asked")
    return made
