"""One client request as generated text: its calls, their tokens, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from alipes.gateway.api.errors import ApiError, from_failure
from alipes.gateway.api.exchange import ClientGoneError
from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallFailure
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.conversation.message import Message, Tool
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.inbox import ClientLeft, Inbox, InboxEvent
from alipes.gateway.routing.decision import Placement
from alipes.gateway.routing.identity import NO_CLAIM, Claim
from alipes.gateway.telemetry.record import CallRecord
from alipes.gateway.text.model import ModelText
from alipes.gateway.text.reply.deltas import (
    Delta,
    PlainParser,
    TextDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)
from alipes.gateway.text.stops import StopMatcher
from alipes.instance.contract import (
    Drawn,
    Finished,
    FinishReason,
    Sampling,
    Started,
    TokenIds,
)

SEED_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Job:
    """What a client asks for, in terms of no dialect. There are ``n`` choices for each prompt,
    numbered prompt by prompt; choice i draws with seed ``sampling.seed + i``. A prompt and its
    output have ``context`` tokens at most. ``chat`` says whether thoughts and calls of ``tools``
    are looked for in the output, which begins with thoughts where the prompt has ``opened`` them;
    with ``mute`` calls are withheld. ``claim`` is what the client tells of its session. A next
    prompt begins with the first ``stems[i]`` ids of prompt i. ``messages`` are those
    that the prompt was made of, if it was."""

    text: ModelText
    prompts: tuple[TokenIds, ...]
    stems: tuple[int, ...]
    context: int
    max_tokens: int
    sampling: Sampling
    n: int = 1
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    forced: bytes = b""
    tools: tuple[Tool, ...] = ()
    mute: bool = False
    opened: bool = False
    chat: bool = True
    claim: Claim = NO_CLAIM
    messages: Sequence[Message] | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    def call(self, index: int, tenant: str, claim: Claim) -> CallRequest:
        prompt = index // self.n
        tokens = self.prompts[prompt]
        sampling = self.sampling
        return CallRequest(
            model=self.text.name,
            tenant=tenant,
            tokens=tokens,
            max_tokens=min(self.max_tokens, self.context - len(tokens)),
            sampling=replace(sampling, seed=(sampling.seed + index) & SEED_MASK),
            stop_ids=() if self.ignore_eos else tuple(self.text.stop_ids),
            forced=self.forced,
            claim=claim,
            stem=self.stems[prompt],
            messages=self.messages,
            shortens=True,
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """``reason`` is "stop", "length" or "tool_calls"; ``stop`` the stop string that matched."""

    reason: str
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What is new of one choice. ``drawn`` are the tokens behind ``deltas`` where the call
    asked for logprobs. The last update of a choice has ``finish``."""

    index: int
    deltas: list[Delta]
    drawn: list[Drawn]
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all choices together; a prompt counts once, whatever ``n`` is. Of those
    ``cached`` some were ``restored`` from an instance's host memory."""

    prompt: int
    cached: int
    restored: int
    completion: int


class Choice:
    """The text of one call: ids to characters, thoughts, tool calls, and stop strings in what
    remains, which is what the client sees as text."""

    def __init__(self, job: Job, index: int) -> None:
        self.index = index
        self.tokens = 0
        self.finish: Finish | None = None
        self._decoder = job.text.decoder()
        self._parser = job.text.output(job.tools, job.opened) if job.chat else PlainParser()
        self._stops = StopMatcher(job.stops)
        self._mute = job.mute
        self._drawn = DrawnText(job.text) if job.sampling.top_logprobs >= 0 else None
        self._calls = 0
        self._broken = False

    def draw(self, drawn: Drawn) -> Update | None:
        """Take one token; None when nothing can be shown yet. After a stop string the update
        has ``finish`` and nothing more may come."""
        self.tokens += 1
        if self._drawn is not None:
            self._drawn.add(drawn)
        deltas = self._shown(self._parser.push(self._decoder.push((drawn.token,))))
        if self._stops.matched is not None:
            return self.end(FinishReason.STOP, deltas)
        return self._update(deltas) if deltas else None

    def end(self, reason: FinishReason, deltas: list[Delta] | None = None) -> Update:
        """The last update: whatever was held back, and why it ended."""
        rest = deltas or []
        if self._stops.matched is None:
            rest += self._shown(self._parser.push(self._decoder.finish()))
            rest += self._shown(self._parser.finish())
            rest += self._released()
        stopped = self._stops.matched
        ended = FinishReason.STOP if stopped is not None else reason
        called = self._calls > 0 and not self._broken
        name = "tool_calls" if called and ended is FinishReason.STOP else ended.value
        self.finish = Finish(name, stopped)
        return self._update(rest, self.finish)

    def _shown(self, deltas: Iterable[Delta]) -> list[Delta]:
        """What the client sees of these, up to a stop string in its text."""
        shown: list[Delta] = []
        for delta in deltas:
            if self._stops.matched is not None:
                break
            if isinstance(delta, TextDelta):
                shown += self._text(self._stops.push(delta.text))
                continue
            if isinstance(delta, ToolStart | ToolArguments | ToolEnd):
                if self._mute:
                    continue
                self._calls += isinstance(delta, ToolStart)
                self._broken |= isinstance(delta, ToolEnd) and not delta.whole
            shown += [*self._released(), delta]
        return shown

    def _released(self) -> list[Delta]:
        """Text that was held back, as it could have begun a stop string."""
        return self._text(self._stops.finish()) if self._stops.matched is None else []

    @staticmethod
    def _text(text: str) -> list[Delta]:
        return [TextDelta(text)] if text else []

    def _update(self, deltas: list[Delta], finish: Finish | None = None) -> Update:
        drawn = [] if self._drawn is None else self._drawn.take(self._stops.dropped)
        return Update(self.index, deltas, drawn, finish)


class DrawnText:
    """Tokens whose log probabilities have not been told."""

    def __init__(self, text: ModelText) -> None:
        self._model = text
        self._waiting: list[Drawn] = []

    def add(self, drawn: Drawn) -> None:
        self._waiting.append(drawn)

    def take(self, dropped: int) -> list[Drawn]:
        """All of them, but those of the last ``dropped`` characters, which no client sees."""
        waiting, self._waiting = self._waiting, []
        while dropped > 0 and waiting:
            dropped -= max(1, len(self._model.piece(waiting[-1].token)[0]))
            if dropped >= 0:
                waiting.pop()
        return waiting


class Generation:
    """All calls of one client request. One consumer; ``close`` must be called."""

    def __init__(self, job: Job, dispatcher: Dispatcher, record: CallRecord) -> None:
        self.job = job
        self.inbox = Inbox()
        self.placement: Placement | None = None
        self.begun = False
        self._dispatcher = dispatcher
        self._record = record
        self._choices = [Choice(job, index) for index in range(job.choices)]
        self._starts: dict[int, Started] = {}
        self._calls: list[Call] = []
        self._open = job.choices
        self._broken: ApiError | ClientGoneError | None = None
        record.model = job.text.name
        record.prompt_tokens = self.usage.prompt

    def start(self) -> None:
        """Submit all calls. The choices of one prompt are of one session."""
        claim = self.job.claim
        for index in range(self.job.choices):
            if index % self.job.n == 0:
                claim = self.job.claim
            request = self.job.call(index, self._record.tenant, claim)
            call = self._dispatcher.submit(request, index, self.inbox, self._record)
            self._calls.append(call)
            claim = call.claim
        self._record.session = self.claim.session
        self._record.branch = self._calls[0].session.branch.hex()
        self._record.continuation = self._calls[0].session.continuation

    @property
    def claim(self) -> Claim:
        """What leads to the session and branch of the first call, once started."""
        return self._calls[0].claim if self._calls else self.job.claim

    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    @property
    def usage(self) -> Usage:
        firsts = range(0, self.job.choices, self.job.n)
        starts = [self._starts[index] for index in firsts if index in self._starts]
        return Usage(
            prompt=sum(len(tokens) for tokens in self.job.prompts),
            cached=sum(start.cached_tokens for start in starts),
            restored=sum(start.restored_tokens for start in starts),
            completion=sum(choice.tokens for choice in self._choices),
        )

    async def step(self, timeout: float) -> list[Update]:
        """What is new, waiting up to ``timeout`` seconds; may be []. Raises ``ApiError`` when
        the request fails and ``ClientGoneError`` when nobody listens any more; what came before
        that is returned first."""
        if self._broken is not None:
            raise self._broken
        updates: list[Update] = []
        for index, event in await self.inbox.take(timeout):
            try:
                update = self._apply(index, event)
            except (ApiError, ClientGoneError) as error:
                if not updates:
                    raise
                self._broken = error
                break
            if update is not None:
                updates.append(update)
        return updates

    def close(self) -> None:
        """Cancel what still runs and complete the record."""
        for call in self._calls:
            self._dispatcher.cancel(call)
        usage = self.usage
        self._record.cached_tokens = usage.cached
        self._record.restored_tokens = usage.restored
        self._record.completion_tokens = usage.completion

    def _apply(self, index: int, event: InboxEvent) -> Update | None:
        if isinstance(event, ClientLeft):
            raise ClientGoneError
        if isinstance(event, CallFailure):
            raise from_failure(event)
        choice = self._choices[index]
        if choice.finish is not None:
            return None
        if isinstance(event, Drawn):
            return self._drawn(choice, event)
        if isinstance(event, Finished):
            self._open -= 1
            return choice.end(event.reason)
        if isinstance(event, Started):
            self.begun = True
            self._starts[index] = event
        elif isinstance(event, Placement):
            self.placement = event
        return None

    def _drawn(self, choice: Choice, drawn: Drawn) -> Update | None:
        self.begun = True
        update = choice.draw(drawn)
        if choice.finish is not None:
            self._open -= 1
            self._dispatcher.satisfied(self._calls[choice.index])
        return update
