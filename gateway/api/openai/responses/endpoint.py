"""``/v1/responses``: create, look up, delete."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
from msgspec.structs import replace

from alipes.gateway.api.errors import ApiError, ErrorClass
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation, Update
from alipes.gateway.api.intake import Ask, job_of
from alipes.gateway.api.openai.responses.history import History, history_of, response_id_of
from alipes.gateway.api.openai.responses.kept import Kept, Turn
from alipes.gateway.api.openai.responses.output import Object, Output
from alipes.gateway.api.openai.responses.prompt import messages_of, tools_of
from alipes.gateway.api.openai.responses.response import begun, ended
from alipes.gateway.api.openai.responses.schema import ResponsesBody, check_supported
from alipes.gateway.api.openai.responses.stream import ResponseStream
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import placement_headers, run, stream
from alipes.gateway.api.wishes import (
    Mode,
    functions_of,
    json_answer,
    openai_choice,
    schema_field,
    wished,
)
from alipes.gateway.conversation.message import Conversation, goes_on

SEALED: Final = "reasoning.encrypted_content"
"""What a client includes that keeps thoughts only in a form it cannot read."""

_decoder: Final = msgspec.json.Decoder(ResponsesBody)


async def create_response(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_decoder, service.body_limit, service.check_outline)
    check_supported(body)
    tenant = exchange.record.tenant
    history = history_of(service.responses, tenant, body, service.dispatcher.now())
    creation = Creation(service, exchange, body, history)
    try:
        await creation.answer()
    finally:
        creation.settle()


async def get_response(service: Service, exchange: Exchange) -> None:
    await exchange.respond(200, _stored(service, exchange).body)


async def delete_response(service: Service, exchange: Exchange) -> None:
    """Forget it; responses that continue it keep their conversation."""
    _stored(service, exchange)
    response_id = exchange.path_params["response_id"]
    now = service.dispatcher.now()
    service.responses.remove(exchange.record.tenant, response_id, now)
    await exchange.reply({"id": response_id, "object": "response", "deleted": True})


def _stored(service: Service, exchange: Exchange) -> Kept:
    response_id = exchange.path_params["response_id"]
    now = service.dispatcher.now()
    kept = service.responses.find(exchange.record.tenant, response_id, now)
    if kept is None or not kept.body:
        message = f"no response {response_id[:64]!r} is stored here"
        raise ApiError(404, ErrorClass.NOT_FOUND, message, "response_id", "not_found")
    return kept


class Creation:
    """One response, from the request to the store. ``settle`` must be called."""

    def __init__(
        self, service: Service, exchange: Exchange, body: ResponsesBody, history: History
    ) -> None:
        suffix = secrets.token_hex(16)
        self.id = response_id_of(suffix)
        self._service = service
        self._exchange = exchange
        self._body = body
        self._history = history
        self._tools = tools_of(body.tools, history.before + history.asked)
        self._output = Output(suffix, self._tools, SEALED in (body.include or ()))
        self._response: Object = {}
        self._kept = False

    async def answer(self) -> None:
        """Run the job and tell it, streamed or whole."""
        service, exchange = self._service, self._exchange
        job = await job_of(service, await self._ask(), exchange.record.tenant)
        now = service.now_seconds()
        self._response = begun(self.id, now, self._body, self._tools, job.max_tokens)
        generation = Generation(job, service.dispatcher, exchange.record)
        if self._body.stream:
            exchange.record.stream = True
            form = ResponseStream(self._response, self._output, self._conclude)
            await stream(exchange, generation, form, service.cluster.gateway.limits.keep_alive)
            return
        await run(exchange, generation, self._take)
        self._output.close()
        await exchange.reply(self._conclude(generation), placement_headers(generation))

    def settle(self) -> None:
        """Give up the place on the branch if nothing came of it."""
        if self._history.continues is not None and not self._kept:
            self._history.continues.not_continued_by(self.id)

    async def _ask(self) -> Ask:
        body, history = self._body, self._history
        before, continues = history.before, history.continues
        items = before + history.asked
        messages = await self._exchange.apart(messages_of, body.instructions, items, len(before))
        choice = openai_choice(body.tool_choice, body.parallel_tool_calls)
        previous = continues.continued_by(self.id) if continues else None
        return Ask(
            prompt=Conversation(
                messages,
                self._tools.shown,
                mute=choice.mode is Mode.NONE,
                continues=goes_on(messages),
                field="input",
            ),
            sampling=body,
            limit=body.max_output_tokens,
            claim=body.claim(self._exchange.headers, previous),
            wished=wished(
                choice,
                functions_of(self._tools.shown),
                json_answer(body.format, "text.format"),
                schema_field(body.format, "text.format"),
                {origin.name: shown for shown, origin in self._tools.origins.items()},
                self._tools.hosted,
            ),
        )

    def _take(self, update: Update) -> None:
        self._output.add(update)

    def _conclude(self, generation: Generation) -> Object:
        """The finished response, kept for a later one to continue."""
        service, history = self._service, self._history
        response = ended(self._response, self._output, generation.usage, service.now_seconds())
        turn, body = None, b""
        if self._body.store is not False:
            asked = msgspec.json.encode(history.asked)
            answered = msgspec.json.encode(self._output.items)
            turn, body = Turn(history.turn, asked, answered), msgspec.json.encode(response)
        service.responses.add(
            self._exchange.record.tenant,
            self.id,
            # A doubtful id of the request has become the session's own.
            replace(generation.claim, weak=False),
            service.dispatcher.now(),
            turn=turn,
            body=body,
            follows=history.continues,
        )
        self._kept = True
        return response
