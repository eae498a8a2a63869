"""What one call costs on one instance, in predicted seconds: Talaria Eq. 1.

    cost = (queue + prefill + decode) + recovery + activation

Each second is charged in exactly one term. ``queue`` is the wait until the call's own prefill,
work of other models included; ``decode`` is the call's own decoding beside the batch it joins,
and the delay that its prefill and its row add to the calls that already decode there. Hot and
cold instances are ranked by this one sum. ``recovery`` is zero: the whole prompt is charged as
prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from alipes.gateway.routing.admission import check
from alipes.gateway.routing.decision import Candidate, Why
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import (
    Round,
    decode_step,
    full_step,
    has_work,
    predict_round,
    prefill_seconds,
    typical_remaining,
    waiting_prefill,
)
from alipes.instance.contract import Estimate, Hello, Load, Snapshot


@dataclass(frozen=True, slots=True)
class _Scene:
    """One instance as the call would find it, and with the call in it."""

    hello: Hello
    snapshot: Snapshot
    charge: Charge
    before: Mapping[str, Load]
    after: Mapping[str, Load]
    costs: Mapping[str, Estimate]
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


def evaluate(instance: InstanceState, charge: Charge, costs: Mapping[str, Estimate]) -> Candidate:
    """Predict and check the call on an instance in condition ``ok`` that serves its model;
    ``costs`` are those to charge there, by model."""
    hello, snapshot = instance.hello, instance.snapshot
    assert hello is not None
    assert snapshot is not None
    before = instance.loads()
    after = {**before, charge.model: _with(before.get(charge.model, Load()), charge)}
    if any(model not in costs for model, load in after.items() if has_work(load)):
        return Candidate(instance.name, why=Why.NO_ESTIMATE)
    predicted = predict_round(
        after,
        costs,
        snapshot.active_model,
        hello.targets,
        hello.prefill_chunk,
        hello.max_running,
    )
    scene = _Scene(hello, snapshot, charge, before, after, costs, predicted)
    why = check(hello, charge.model, before, after, charge.output_tokens, predicted)
    queue, prefill = _queue(scene), _prefill(scene)
    decode, activation = _decode(scene, prefill), _activation(scene)
    return Candidate(
        instance=instance.name,
        queue=queue,
        prefill=prefill,
        decode=decode,
        activation=activation,
        total=queue + prefill + decode + activation,
        round_length=predicted.length,
        admitted=why is Why.OK,
        why=why,
    )


def _with(load: Load, charge: Charge) -> Load:
    return Load(
        waiting=load.waiting + 1,
        waiting_tokens=load.waiting_tokens + charge.prompt_tokens,
        running=load.running,
        running_context=load.running_context,
        remaining_tokens=load.remaining_tokens,
    )


def _prefill(scene: _Scene) -> float:
    return prefill_seconds(scene.cost, scene.charge.prompt_tokens, scene.hello.prefill_chunk)


def _queue(scene: _Scene) -> float:
    """Prefill of the same model ahead, the decode steps between the chunks, a free row, and
    the turns of the other models."""
    own, hello = scene.own, scene.hello
    step = decode_step(scene.cost, own.running, own.running_context)
    tokens = own.waiting_tokens + scene.charge.prompt_tokens
    ahead = waiting_prefill(scene.cost, own, hello.prefill_chunk)
    between = step * max(own.waiting, ceil(tokens / hello.prefill_chunk) - 1)
    return ahead + between + _free_row(scene) + _other_turns(scene)


def _free_row(scene: _Scene) -> float:
    """Until calls have finished, where all rows are taken."""
    own, rows = scene.own, scene.hello.max_running
    excess = own.running + own.waiting + 1 - rows
    if excess <= 0:
        return 0.0
    typical = typical_remaining(own) if own.running else scene.charge.output_tokens
    return ceil(excess / rows) * typical * full_step(scene.cost, own, rows)


def _other_turns(scene: _Scene) -> float:
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
    bound = scene.hello.targets.gamma * scene.hello.targets.ttft
    length = min(scene.round.length, bound)
    return wait + (_slots(scene) - 1) * length


def _slots(scene: _Scene) -> int:
    """Slots over which the prompt is spread: each takes a round's budget, or one chunk."""
    tokens, chunk = scene.charge.prompt_tokens, scene.hello.prefill_chunk
    most = max(1, ceil(tokens / chunk))
    if scene.round.budget <= 0:
        return most
    return min(most, max(1, ceil(_prefill(scene) / scene.round.budget)))


def _decode(scene: _Scene, prefill: float) -> float:
    """The call's own decoding, at the cadence of the round where models take turns, and the
    delay of those that decode there: the prefill, and a longer step while both run."""
    own, cost, output = scene.own, scene.cost, scene.charge.output_tokens
    step = full_step(cost, scene.after[scene.charge.model], scene.hello.max_running)
    pace = max(step, scene.hello.targets.tpot) if scene.others else step
    running = sum(load.running for load in scene.before.values())
    delay = prefill if running else 0.0
    if own.running:
        together = min(output, typical_remaining(own))
        context = scene.charge.prompt_tokens + together / 2
        delay += together * (cost.decode_call + context * cost.decode_context)
    return output * pace + delay


def _activation(scene: _Scene) -> float:
    """The switch that the call causes: none where the model is active, or has work and so a
    slot that the round counts already."""
    model = scene.charge.model
    if model == scene.snapshot.active_model or has_work(scene.own):
        return 0.0
    return scene.cost.switch
