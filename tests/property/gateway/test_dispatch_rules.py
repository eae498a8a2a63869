"""The dispatcher against an obvious model: who holds which call, and what its client heard.

An instance draws ``token_after`` of all that it was given, so that a client's stream tells whether
what came after an interruption is what would have come without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.call import Call, Stage
from alipes.gateway.calls.events import CallFailure, Moved
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.inbox import Inbox
from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.telemetry.metrics import Metrics
from alipes.instance.contract import (
    PROTOCOL,
    Cancel,
    Counters,
    Drawn,
    Estimate,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Started,
    Submit,
    Targets,
    ToInstance,
    Tokens,
)

NAMES = ("one", "two")
QUEUE_SECONDS = 3.0
MAX_WAITING = 2
MAX_TOKENS = 6
names = st.sampled_from(NAMES)


CLAIMS = (
    NO_CLAIM,
    Claim("s", source=Source.OWN),
    Claim("t", "branch", source=Source.OWN),
    Claim("t", final=True, source=Source.OWN),
)
BRANCHES = 4


def token_after(history: tuple[int, ...]) -> int:
    return (sum(history) * 31 + len(history)) % 97


def answer(prompt: tuple[int, ...]) -> list[int]:
    """What a call must draw, wherever it is served."""
    history = prompt
    while len(history) < len(prompt) + MAX_TOKENS:
        history = (*history, token_after(history))
    return list(history[len(prompt) :])


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time only moves when the test moves it."""

    seconds = 1.0

    def time(self) -> float:
        return self.seconds


class DispatchMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = VirtualLoop()
        self.held: dict[str, list[Submit]] = {}
        self.silent: set[bytes] = set()
        self.said: dict[bytes, list[int]] = {}
        self.calls: list[tuple[Call, Inbox, list[Any]]] = []
        self.cancelled: set[int] = set()
        self.version = 0
        known = {"m": frozenset(NAMES)}
        self.router = Router(known, RouterSettings(queue_depth=3, queue_timeout=QUEUE_SECONDS))
        metrics = Metrics(known, NAMES)
        clock = lambda: int(self.loop.seconds * 1e9)  # noqa: E731
        self.sessions = SessionTable(BRANCHES, 60.0, Random(1).randbytes)
        self.book = CallBook(self.router, self.sessions, Random(2).randbytes)
        self.dispatcher = Dispatcher(self.book, self._send, clock, [metrics], [metrics])

    def teardown(self) -> None:
        if hasattr(self, "dispatcher"):
            self._finish_everything()
            self.dispatcher.close()
            self.loop.close()

    # --- the instances, as the dispatcher's messages make them ---

    def _send(self, instance: str, message: ToInstance) -> bool:
        if instance not in self.held:
            return False
        if isinstance(message, Submit):
            self.held[instance].append(message)
            self.silent.add(message.call_id)
            self.said[message.call_id] = np.frombuffer(message.tokens, "<i4").tolist()
        elif isinstance(message, Cancel):
            self.held[instance] = [
                call for call in self.held[instance] if call.call_id != message.call_id
            ]
        return True

    def _in_loop(self, action: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            result = action()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(inside())

    def _report(self, name: str) -> None:
        self.version += 1
        load = Load(waiting=0, running=len(self.held[name]))
        snapshot = Snapshot(
            version=self.version,
            active_model="m",
            phase="idle",
            round_remaining=0.0,
            round_length=0.0,
            draining=False,
            loads={"m": load},
            estimates={"m": Estimate(0.01, 1e-5, 0.0, 0.001, 0.0, 0.0, 0.1, 0.0, 1e-6, 1)},
            occupancy=Occupancy(100, 100, 0, 0, 0, 0),
            counters=Counters(),
            last_call=self.held[name][-1].call_id if self.held[name] else b"",
        )
        self.dispatcher.message(name, snapshot)

    def _connect(self, name: str) -> None:
        self.held[name] = []
        hello = Hello(
            protocol=PROTOCOL,
            name=name,
            incarnation="i",
            pool=Pool.HOT,
            engine="fake",
            device="cpu",
            block_tokens=64,
            max_running=1,
            max_waiting=MAX_WAITING,
            prefill_chunk=512,
            targets=Targets(),
            models=(ModelReport("m", "f", 2000, 100, 1, 1, 100),),
            pid=1,
        )
        self.dispatcher.connected(hello)
        self._report(name)

    # --- what can happen ---

    @rule(name=names)
    def connect(self, name: str) -> None:
        """Also anew, without a loss seen before."""
        self._in_loop(lambda: self._connect(name))

    @rule(name=names)
    def lose(self, name: str) -> None:
        if name in self.held:
            del self.held[name]
            self._in_loop(lambda: self.dispatcher.lost(name, "killed"))

    @rule(name=names)
    def report(self, name: str) -> None:
        if name in self.held:
            self._in_loop(lambda: self._report(name))

    @precondition(lambda self: len(self.calls) < 12)
    @rule(claim=st.sampled_from(CLAIMS), longer=st.integers(0, 2))
    def submit(self, claim: Claim, longer: int) -> None:
        inbox = Inbox()
        tokens = np.zeros(5 + longer, np.int32)
        request = CallRequest("m", "", tokens, MAX_TOKENS, claim=claim, stem=len(tokens))
        call = self._in_loop(lambda: self.dispatcher.submit(request, 0, inbox))
        self.calls.append((call, inbox, []))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.calls:
            index = data.draw(st.integers(0, len(self.calls) - 1))
            if not self.calls[index][0].done:
                self.cancelled.add(index)
            self._in_loop(lambda: self.dispatcher.cancel(self.calls[index][0]))

    @rule(data=st.data())
    def satisfy(self, data: st.DataObject) -> None:
        """The client has all it wants of a call that has drawn something."""
        begun = [i for i, (call, _, _) in enumerate(self.calls) if call.drawn and not call.done]
        if begun:
            index = data.draw(st.sampled_from(begun))
            self.cancelled.add(index)
            self._in_loop(lambda: self.dispatcher.satisfied(self.calls[index][0]))

    @rule(name=names, tokens=st.integers(0, 2), data=st.data())
    def work(self, name: str, tokens: int, data: st.DataObject) -> None:
        """An instance begins, draws, and perhaps ends one of its calls."""
        if not self.held.get(name):
            return
        call = data.draw(st.sampled_from(self.held[name]))
        fails = data.draw(st.sampled_from([None, None, None, *FailureClass]))

        def play() -> None:
            if call.call_id in self.silent:
                self.silent.discard(call.call_id)
                self.dispatcher.message(name, Started(call.call_id, 0, 0.0))
            left = self._draw(name, call, tokens)
            if fails is not None:
                self.held[name].remove(call)
                self.dispatcher.message(name, Failed(call.call_id, fails, "no"))
            elif not left and data.draw(st.booleans()):
                # Else it is lost, or goes on, between its last token and its end.
                self._finish(name, call)

        self._in_loop(play)

    def _draw(self, name: str, call: Submit, tokens: int) -> int:
        """Draw so many tokens of what is left; how many are left then."""
        said = self.said[call.call_id]
        end = len(call.tokens) // 4 - call.resumed + call.max_tokens
        for _ in range(min(tokens, end - len(said))):
            said.append(token_after(tuple(said)))
            self.dispatcher.message(name, Tokens("m", (Drawn(call.call_id, said[-1]),)))
        return end - len(said)

    def _finish(self, name: str, call: Submit) -> None:
        self.held[name].remove(call)
        self.dispatcher.message(name, self._finished(call))

    @rule(seconds=st.sampled_from([0.06, 0.5, 2.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.loop.seconds += seconds
        self._in_loop(lambda: None)

    # --- what must hold ---

    @invariant()
    def a_session_has_in_flight_what_is_live(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        live = [call for call, _, _ in self.calls if not call.done]
        assert tuple(live) == self.book.live
        assert len({call.session.branch for call in live}) == len(live)
        kept = 0
        for name in {call.session.session for call in live}:
            view = self.sessions.view("", name, self.dispatcher.now())
            assert view is not None
            assert view.in_flight == sum(call.session.session == name for call in live)
            kept += len(view.branches)
        # A session with a call in flight keeps its idle branches too.
        assert self.sessions.branches <= BRANCHES + kept

    @invariant()
    def a_stream_is_whatever_happens_to_instances_what_it_would_be(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self._look()
        for call, _, seen in self.calls:
            drawn = [event.token for event in seen if isinstance(event, Drawn)]
            assert drawn == call.drawn == answer(tuple(call.request.tokens.tolist()))[: len(drawn)]
            moved = [event.drawn for event in seen if isinstance(event, Moved)]
            assert moved == sorted(moved)
            if isinstance(seen[-1] if seen else None, Finished):
                assert len(drawn) == MAX_TOKENS == seen[-1].completion_tokens

    @invariant()
    def a_call_that_waits_has_an_event_that_moves_it(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        for call in self.book.live:
            if call.stage in (Stage.QUEUED, Stage.PAUSED):
                assert self.book.next_wakeup(self.dispatcher.now()) is not None

    @invariant()
    def instances_hold_what_is_placed(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        held = {call.call_id for calls in self.held.values() for call in calls}
        placed = {leg.id for name in NAMES for leg in self.book.on(name)}
        assert held == placed
        for call in self.book.live:
            assert bool(call.instance) == (call.stage in (Stage.SENT, Stage.STREAMING))
            assert (call.stage is Stage.PAUSED) == (not call.legs)
            assert {leg.id for leg in call.legs if leg.instance} <= placed
        status = self.router.status(self.dispatcher.now())
        assert sum(instance.placed for instance in status.instances) == len(held)

    @invariant()
    def a_call_ends_once_and_then_is_silent(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self._look()
        for index, (call, _, seen) in enumerate(self.calls):
            ends = [i for i, event in enumerate(seen) if isinstance(event, Finished | CallFailure)]
            if not call.done or index in self.cancelled:
                assert not ends
            else:
                assert ends == [len(seen) - 1]

    def _look(self) -> None:
        """Note the new events of every call."""
        for _, inbox, seen in self.calls:
            seen += [event for _, event in self.loop.run_until_complete(inbox.take(0))]

    def _finished(self, call: Submit) -> Finished:
        prompt = len(call.tokens) // 4 - call.resumed
        drawn = len(self.said[call.call_id]) - prompt
        return Finished(call.call_id, FinishReason.LENGTH, None, prompt, 0, drawn, 0.0, 0.0, 0.0)

    def _finish_everything(self) -> None:
        """Every call ends when instances answer and time goes on."""
        for _ in range(8):
            self.loop.seconds += QUEUE_SECONDS + 1
            self._in_loop(lambda: None)
            for name in list(self.held):
                for call in list(self.held[name]):
                    self._in_loop(lambda n=name, c=call: self._draw(n, c, MAX_TOKENS))
                    self._in_loop(lambda n=name, c=call: self._finish(n, c))
        assert all(call.done for call, _, _ in self.calls)
        assert len(self.book) == 0
        self.a_stream_is_whatever_happens_to_instances_what_it_would_be()
        assert not self.router.status(self.dispatcher.now()).queued.get("m", 0)


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
