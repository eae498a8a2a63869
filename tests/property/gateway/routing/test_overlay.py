"""The overlay adds what it was given, takes it back exactly, and knows what a state shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from alipes.gateway.routing.overlay import Charge, Overlay
from alipes.instance.contract import Load

charges = st.builds(
    Charge,
    model=st.sampled_from("ab"),
    prompt_tokens=st.integers(6000, 10_000),
    output_tokens=st.integers(0, 1000),
    device_tokens=st.integers(0, 3000),
    host_tokens=st.integers(0, 3000),
)
ids = st.integers(0, 9).map(lambda n: bytes([n]))
events = st.lists(st.tuples(st.sampled_from(["release", "shown"]), ids), max_size=12)


@given(st.lists(charges, min_size=1, max_size=10), events)
def test_against_a_list(given_charges: list[Charge], happenings: list[tuple[str, bytes]]) -> None:
    overlay = Overlay()
    order = [bytes([n]) for n in range(len(given_charges))]
    charged = dict(zip(order, given_charges, strict=True))
    for call_id, charge in charged.items():
        overlay.add(call_id, charge)
    for what, call_id in happenings:
        getattr(overlay, what)(call_id)
        if what == "release":
            charged.pop(call_id, None)
        elif call_id in order and charged:
            for earlier in order[: order.index(call_id) + 1]:
                charged.pop(earlier, None)
        assert len(overlay) == len(charged)
        expected = {"a": Load(running=2), "c": Load(waiting=1)}
        for charge in charged.values():
            load = expected.get(charge.model, Load())
            expected[charge.model] = Load(
                load.waiting + 1,
                load.waiting_tokens + charge.prompt_tokens - charge.present_tokens,
                load.running,
                load.running_context + charge.present_tokens,
                load.remaining_tokens,
            )
        assert overlay.onto({"a": Load(running=2), "c": Load(waiting=1)}) == expected
        copied = [c for c in charged.values() if c.host_tokens]
        assert overlay.restores() == {
            model: (len(own), sum(c.host_tokens for c in own))
            for model in "ab"
            if (own := [c for c in copied if c.model == model])
        }
    for call_id in order:
        overlay.release(call_id)
    assert len(overlay) == 0
    assert overlay.onto({}) == overlay.restores() == {}
