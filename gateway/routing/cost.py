"""What one call costs on one instance, in predicted seconds: Talaria Eq. 1.

    cost = (queue + prefill + decode) + recovery + activation + eviction

Each second is charged in exactly one term. ``queue`` is the wait until the call's own prefill,
work of other models and places held for returning sessions included; ``prefill`` computes what
is new in the prompt; ``decode`` is the call's own decoding beside the batch it joins, and the
delay that it adds to the calls that already decode there. ``recovery`` is the KV that the call's
branch has had: nothing for what is on the device, the measured copy for what is on the host,
computing it again for what is missing. ``activation`` is the switch to the model, and the one
back to another that would not have to leave otherwise. ``eviction``, which is ours, is the recovery
of KV of others that has to make room. Hot and cold instances are ranked by this one sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from alipes.gateway.routing.admission import check
from alipes.gateway.routing.decision import Candidate, Why
from alipes.gateway.routing.eviction import NONE, eviction
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import (
    Round,
    decode_step,
    full_step,
    has_work,
    predict_round,
    prefill_seconds,
    restore_seconds,
    typical_remaining,
    waiting_prefill,
)
from alipes.instance.contract import Estimate, Hello, Load, Pool, Snapshot


@dataclass(frozen=True, slots=True)
class _Scene:
    """One instance as the call would find it, and with the call in it."""

    hello: Hello
    snapshot: Snapshot
    charge: Charge
    before: Mapping[str, Load]
    after: Mapping[str, Load]
    costs: Mapping[str, Estimate]
    held: float
    round: Round

    @property
    def cost(self) -> Estimate:
        return self.costs[self.charge.model]

    @property
    def own(self) -> Load:
        return self.before.get(self.charge.model, Load())

    @property
    def others(self) -> list[str]:
        return [m for m, load in self.before.items() if m != self.charge.model and has_work(load)]


def evaluate(
    instance: InstanceState,
    charge: Charge,
    costs: Mapping[str, Estimate],
    held: float = 0.0,
    returning: frozenset[str] = frozenset(),
    come_back: float = 0.0,
) -> Candidate:
    """Predict and check the call on an instance with a state that serves its model. ``costs`` are
    those to charge there, by model; ``held`` seconds are leased there to other branches, and
    sessions of the models ``returning`` are likely to come back. A share ``come_back`` of all calls
    is continued; with 0 no thought is given to KV that has to make room."""
    scene = _scene(instance, charge, costs, held)
    device, host = charge.device_tokens, charge.host_tokens
    if scene is None:
        return Candidate(instance.name, device_tokens=device, host_tokens=host, why=Why.NO_ESTIMATE)
    why = check(
        scene.hello,
        charge.model,
        scene.before,
        scene.after,
        charge.output_tokens,
        scene.round.length,
    )
    recovery, prefill = _recovery(scene), _prefill(scene)
    queue = _queue(scene, recovery + prefill) + _shortfall(instance, scene)
    decode = _decode(scene, recovery + prefill)
    activates = _activates(scene)
    activation = scene.cost.switch + _displaced(scene, returning) if activates else 0.0
    evicts = eviction(instance, charge, scene.before) if come_back else NONE
    evicted = evicts.seconds(scene.cost, scene.hello.prefill_chunk, come_back)
    return Candidate(
        instance=instance.name,
        queue=queue,
        prefill=prefill,
        decode=decode,
        recovery=recovery,
        activation=activation,
        eviction=evicted,
        total=queue + prefill + decode + recovery + activation + evicted,
        round_length=scene.round.length,
        device_tokens=device,
        host_tokens=host,
        room=evicts.room,
        opens=activates and scene.hello.pool is Pool.COLD,
        admitted=why is Why.OK,
        why=why,
    )


def _scene(
    instance: InstanceState, charge: Charge, costs: Mapping[str, Estimate], held: float
) -> _Scene | None:
    """None where the cost of a model that has work there is not known."""
    hello, snapshot = instance.hello, instance.snapshot
    assert hello is not None
    assert snapshot is not None
    before = instance.loads()
    after = {**before, charge.model: charge.onto(before.get(charge.model, Load()))}
    if any(model not in costs for model, load in after.items() if has_work(load)):
        return None
    for model, (copies, tokens) in instance.overlay.restores().items():
        held += restore_seconds(costs[model], tokens, copies)
    predicted = predict_round(
        after,
        costs,
        snapshot.active_model,
        hello.targets,
        hello.prefill_chunk,
        hello.max_running,
        held + restore_seconds(costs[charge.model], charge.host_tokens),
    )
    if instance.pressure.at_risk:
        # Its own rounds went over the bound: what it says of them counts.
        predicted = Round(max(predicted.length, snapshot.round_length), predicted.budget)
    return _Scene(hello, snapshot, charge, before, after, costs, held, predicted)


def _compute(scene: _Scene, until: int) -> float:
    """Computing the prompt from what is present up to a position."""
    start = scene.charge.present_tokens
    chunk = scene.hello.prefill_chunk
    return prefill_seconds(scene.cost, max(0, until - start), chunk, start)


def _recovery(scene: _Scene) -> float:
    """The measured copy from the host, and computing again what the branch has had."""
    restore = restore_seconds(scene.cost, scene.charge.host_tokens)
    return restore + _compute(scene, scene.charge.known_tokens)


def _prefill(scene: _Scene) -> float:
    """All that must be computed, less what recovery is charged for."""
    charge = scene.charge
    return _compute(scene, charge.prompt_tokens) - _compute(scene, charge.known_tokens)


def _queue(scene: _Scene, work: float) -> float:
    """Prefill of the same model ahead, the decode steps between the chunks, a free row, the
    turns of the other models, and what is held; ``work`` is the call's own prefill seconds."""
    own, hello = scene.own, scene.hello
    step = decode_step(scene.cost, own.running, own.running_context)
    tokens = own.waiting_tokens + scene.charge.compute_tokens
    ahead = waiting_prefill(scene.cost, own, hello.prefill_chunk)
    between = step * max(own.waiting, ceil(tokens / hello.prefill_chunk) - 1)
    return ahead + between + scene.held + _free_row(scene) + _other_turns(scene, work)


def _shortfall(instance: InstanceState, scene: _Scene) -> float:
    """Prefill of the model for which its slots had no room lately; an idle instance has room."""
    if not any(map(has_work, scene.before.values())):
        return 0.0
    return instance.pressure.shortfall(scene.charge.model)


def _free_row(scene: _Scene) -> float:
    """Until calls have finished, where all rows are taken."""
    own, rows = scene.own, scene.hello.max_running
    excess = own.running + own.waiting + 1 - rows
    if excess <= 0:
        return 0.0
    typical = typical_remaining(own) if own.running else scene.charge.output_tokens
    return ceil(excess / rows) * typical * full_step(scene.cost, own, rows)


def _other_turns(scene: _Scene, work: float) -> float:
    """The rest of the round as the instance predicts it, the prefill sent there since, and a
    whole round for every further slot that a long prompt needs (DESIGN 7)."""
    others = scene.others
    if not others:
        return 0.0
    wait = scene.snapshot.round_remaining
    for model in others:
        shown = scene.snapshot.loads.get(model, Load()).waiting_tokens
        unseen = max(0, scene.before[model].waiting_tokens - shown)
        cost = scene.costs[model]
        wait += prefill_seconds(cost, unseen, scene.hello.prefill_chunk)
    bound = scene.hello.targets.round_bound
    length = min(scene.round.length, bound)
    return wait + (_slots(scene, work) - 1) * length


def _slots(scene: _Scene, work: float) -> int:
    """Slots over which the prompt is spread: each takes a round's budget, or one chunk."""
    tokens, chunk = scene.charge.compute_tokens, scene.hello.prefill_chunk
    most = max(1, ceil(tokens / chunk))
    if scene.round.budget <= 0:
        return most
    return min(most, max(1, ceil(work / scene.round.budget)))


def _decode(scene: _Scene, work: float) -> float:
    """The call's own decoding, at the cadence of the round where models take turns, and the
    delay of those that decode there: ``work``, the call's own prefill and recovery, and a longer
    step while both run."""
    own, cost, output = scene.own, scene.cost, scene.charge.output_tokens
    step = full_step(cost, scene.after[scene.charge.model], scene.hello.max_running)
    pace = max(step, scene.hello.targets.tpot) if scene.others else step
    running = sum(load.running for load in scene.before.values())
    delay = work if running else 0.0
    if own.running:
        together = min(output, typical_remaining(own))
        context = scene.charge.prompt_tokens + together / 2
        delay += together * (cost.decode_call + context * cost.decode_context)
    return output * pace + delay


def _activates(scene: _Scene) -> bool:
    """The call makes the model active: it is not, nor has it work and so a slot that the round
    counts already."""
    return scene.charge.model != scene.snapshot.active_model and not has_work(scene.own)


def _displaced(scene: _Scene, returning: frozenset[str]) -> float:
    """The switch back to the model that has the instance to itself, where it has work or is
    expected to: without the call there would be none. Where models take turns, the round has it."""
    active = scene.snapshot.active_model
    if active not in scene.costs or {*scene.others, *returning} != {active}:
        return 0.0
    return scene.costs[active].switch
