from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from alipes.replay.traces.form import Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.synth.numbers import Assumed, Published
from alipes.replay.traces.synth.workloads import WORKLOADS, Wish, synthesise

RECORDED = Trace(
    "recorded",
    tuple(
        Session(name, (Branch("main", (Call(9, 2, 0, (Span(-1, 0, 9),), wait=Wait.START),)),))
        for name in ("one", "two", "three")
    ),
)
FIXED = [name for name, workload in WORKLOADS.items() if workload.fixed_sessions]


def wish(name: str, seed: int = 1, sessions: int = 0) -> Wish:
    return Wish(seed, sessions, (), RECORDED if WORKLOADS[name].from_recorded else None)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_is_a_trace(name: str) -> None:
    encode = msgspec.json.encode
    one = encode(synthesise(name, wish(name)))
    assert encode(synthesise(name, wish(name))) == one
    assert encode(synthesise(name, wish(name, seed=2))) != one


def test_another_process_makes_the_same() -> None:
    """Also with another order of hashes."""
    program = (
        "import hashlib, msgspec\n"
        "from alipes.replay.traces.synth.workloads import Wish, synthesise\n"
        "for name in ('swebench', 'astropy-120', 'putnam-like', 'osworld-like'):\n"
        "    trace = msgspec.json.encode(synthesise(name, Wish()))\n"
        "    print(hashlib.sha256(trace).hexdigest())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in FIXED])
def test_as_many_sessions_as_asked_for(name: str) -> None:
    assert len(synthesise(name, wish(name, sessions=7)).sessions) == 7


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_number_says_where_it_is_from(name: str) -> None:
    numbers = WORKLOADS[name].numbers
    assert any(isinstance(number, Published) for number in numbers.values())
    for number in numbers.values():
        why = number.reason if isinstance(number, Assumed) else number.source
        assert len(why) > 10


@pytest.mark.parametrize(
    ("name", "wanted", "problem"),
    [
        ("swebanch", Wish(), "no workload 'swebanch'; use one of swebench"),
        ("swebench", Wish(seed=-1), "seed -1 is below 0"),
        ("astropy-30", Wish(sessions=3), "leave the number of sessions out"),
        ("astropy-120", Wish(models=("a",)), "is a trace of 3 models"),
        ("coding", Wish(), "name their file, --recorded"),
        ("putnam-like", Wish(recorded=RECORDED), "leave out --recorded"),
    ],
)
def test_what_cannot_be_met_is_refused(name: str, wanted: Wish, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        synthesise(name, wanted)
