"""The endpoint under replay: what it serves, how it counts tokens, one streamed call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from alipes.replay.plan import COMPLETIONS, Request
from alipes.replay.stream import UNREADABLE, Answer, Lines, problem_of

ESTIMATED_CHARACTERS: Final = 3
AT_ONCE: Final = 16
NO_TOKEN: Final = (1 << 31) - 1


class EndpointError(Exception):
    """The endpoint cannot be replayed against; one line says why and what to do."""


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None
    context_length: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Tokens(msgspec.Struct, frozen=True):
    count: int
    tokens: list[int] = []


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _Problem = _Problem()


class Endpoint:
    """An OpenAI-compatible server. ``base_url`` may end in ``/v1`` or not."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self.url = base_url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(
                f"--base-url {base_url!r} is not a URL; give one such as http://127.0.0.1:8000/v1"
            )
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(600, connect=10),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            # A proxy is for other machines.
            trust_env=parts.hostname not in ("localhost", "127.0.0.1", "::1"),
        )
        self._counts: dict[tuple[str, str], int] = {}
        self.counts_are_estimates = False

    async def close(self) -> None:
        await self._client.aclose()

    async def contexts(
        self, models: Iterable[str], option: str = "--models"
    ) -> dict[str, int | None]:
        """Context length in tokens of each model, None where the endpoint does not say. An error
        speaks of the ``option`` that named the models."""
        response = await self._preflight()
        try:
            served = {model.id: model for model in msgspec.json.decode(response, type=_Models).data}
        except UNREADABLE as error:
            raise EndpointError(
                f"{self.url}/v1/models did not answer as an OpenAI endpoint does ({error});"
                " check --base-url"
            ) from None
        for model in models:
            if model not in served:
                raise EndpointError(
                    f"{option}: {self.url} has no model {model!r};"
                    f" it serves {', '.join(sorted(served)) or 'none'}"
                )
        return {
            model: served[model].max_model_len or served[model].context_length for model in models
        }

    async def _preflight(self) -> bytes:
        try:
            response = await self._client.get(f"{self.url}/v1/models")
        except httpx.HTTPError as error:
            raise EndpointError(
                f"cannot reach {self.url} ({_reason(error)}); start it with `alipes serve`"
                " or give another --base-url"
            ) from None
        if response.status_code in (401, 403):
            raise EndpointError(f"{self.url} refused the key; give one with --api-key")
        if response.status_code != 200:
            raise EndpointError(
                f"{self.url}/v1/models answered {response.status_code}; check --base-url"
            )
        return response.content

    async def counts(self, model: str, texts: Iterable[str]) -> Mapping[str, int]:
        """Tokens of each text under ``model``, asked for once in the life of this object. Where
        the endpoint has no ``/tokenize`` the number is an estimate from the text's length."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(text: str) -> int:
            async with gate:
                return await self._count(model, text)

        wanted = list(texts)
        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    async def _count(self, model: str, text: str) -> int:
        key = (model, text)
        if not text:
            return 0
        if key not in self._counts:
            self._counts[key] = await self._ask_count(model, text)
        return self._counts[key]

    async def _ask_count(self, model: str, text: str) -> int:
        found = None if self.counts_are_estimates else await self._tokenized(model, text)
        if found is None:
            self.counts_are_estimates = True
            return -(-len(text) // ESTIMATED_CHARACTERS)
        return found.count

    async def tokens(self, model: str, text: str) -> tuple[int, ...]:
        """The ids of a text under ``model``. Raises ``EndpointError`` where it cannot say."""
        found = await self._tokenized(model, text)
        if found is None or len(found.tokens) != found.count:
            raise EndpointError(
                f"--forced: {self.url}/tokenize does not tell the tokens of a text;"
                " leave --forced out, or replay sessions without text"
            )
        return tuple(found.tokens)

    async def _tokenized(self, model: str, text: str) -> _Tokens | None:
        """None where the endpoint has no ``/tokenize``."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            response = await self._client.post(f"{self.url}/tokenize", json=body)
        except httpx.HTTPError as error:
            raise EndpointError(f"{self.url}/tokenize failed: {_reason(error)}") from None
        if response.status_code in (404, 405, 501):
            return None
        if response.status_code != 200:
            problem = problem_of(response.status_code, response.content)
            raise EndpointError(f"{self.url}/tokenize answered {problem}")
        try:
            return msgspec.json.decode(response.content, type=_Tokens)
        except UNREADABLE:
            return None

    async def check_forced(self, model: str) -> None:
        """Raises ``EndpointError`` unless the endpoint forces completions. It is asked for a token
        that no vocabulary has, so that it draws nothing where it does."""
        body = {
            "model": model,
            "prompt": [0],
            "max_tokens": 1,
            "forced_token_ids": [NO_TOKEN],
        }
        try:
            response = await self._client.post(f"{self.url}{COMPLETIONS}", json=body)
        except httpx.HTTPError as error:
            raise EndpointError(f"{self.url}{COMPLETIONS} failed: {_reason(error)}") from None
        if response.status_code == 200:
            raise EndpointError(
                f"--forced: {self.url} does not know forced_token_ids; leave --forced out"
            )
        try:
            problem = msgspec.json.decode(response.content, type=_Refusal).error
        except UNREADABLE:
            problem = _Problem()
        if problem.param != "forced_token_ids" or problem.code == "not_allowed":
            raise EndpointError(
                f"--forced: {self.url} refuses it"
                f" ({problem_of(response.status_code, response.content)});"
                " set gateway.allow_forced_tokens in its cluster file, or leave --forced out"
            )

    async def send(self, request: Request, clock: Callable[[], int]) -> Answer:
        """One streamed call. Never raises for what the endpoint does: see ``Answer.error``."""
        answer = Answer()
        try:
            await self._stream(answer, request, clock)
        except (httpx.HTTPError, ValueError) as error:
            answer.error = _reason(error)
        return answer

    async def _stream(self, answer: Answer, request: Request, clock: Callable[[], int]) -> None:
        headers = request.headers | {"content-type": "application/json"}
        url = f"{self.url}{request.path}"
        async with self._client.stream(
            "POST", url, content=request.body, headers=headers
        ) as response:
            answer.instance = response.headers.get("x-alipes-instance", "")
            answer.placement = response.headers.get("x-alipes-reason", "")
            if response.status_code != 200:
                answer.error = problem_of(response.status_code, await response.aread())
                return
            # Read to the very end, so that the connection can be used again.
            lines = Lines()
            async for data in response.aiter_bytes():
                for line in lines.take(data):
                    answer.take(line, clock)
            # What may have come without an end of its own.
            for line in lines.take(b"\n"):
                answer.take(line, clock)
        answer.close()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
