"""Models whose keys, values and latents are float16, beside one whose are float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    TokenIds,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.shape import kv_dtype_on
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, Draw, EngineError, Recurrence, Row
from alipes.instance.memory.specs import PagedKV, Recurrent

FAMILIES = {"keys": "qwen3", "latents": "deepseek-v3", "hybrid": "qwen3-next"}
FULL: Final = "full"
"""Of the same folder as ``keys``."""
BLOCK: Final = 64
BOUND: Final = 5e-3
"""Of the difference of any logit from float32 throughout: half a thousandth of the largest ones
here, which are about 10. Found: 0.0025 at most, over all families."""
GREEDY = Sampling(temperature=0)
PROMPT = np.random.default_rng(8).integers(0, 40_000, 300).astype(np.int32)
Reference = Callable[[str, TokenIds], torch.Tensor]


def start(folders: dict[str, tuple[Path, str]], **changes: Any) -> NativeEngine:
    models = (ModelSettings(n, str(f), "float32", kv) for n, (f, kv) in folders.items())
    fields = {"device_bytes": 96 << 20, "host_bytes": 8 << 20, "threads": 1} | changes
    return NativeEngine(
        InstanceSettings(
            name="kv",
            pool=Pool.COLD,
            models=tuple(models),
            targets=Targets(),
            endpoint="",
            **fields,
        )
    )


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[NativeEngine]:
    half = {name: (tiny_folders[family], "float16") for name, family in FAMILIES.items()}
    engine = start({FULL: (tiny_folders[FAMILIES["keys"]], "auto")} | half)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(tiny_folders: dict[str, Path]) -> Reference:
    @cache
    def model(name: str) -> Any:
        folder = tiny_folders[FAMILIES.get(name, FAMILIES["keys"])]
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(name: str, ids: TokenIds) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(name)(torch.from_numpy(ids.astype(np.int64))[None]).logits
        return found[0]

    return logits


class Call:
    """One call, driven by hand; recurrent state is in slot 0."""

    def __init__(self, engine: NativeEngine, name: str, blocks: list[int]) -> None:
        self.engine, self.name, self.blocks = engine, name, blocks
        self.ids, self.done = PROMPT, 0
        self.logits: list[torch.Tensor] = []

    def step(self, limit: int = 512) -> None:
        end = min(self.done + limit, len(self.ids))
        draw = Draw(GREEDY, self.ids, len(PROMPT)) if end == len(self.ids) else None
        tokens = self.ids[self.done : end]
        given = Recurrence(0 if self.done else None, 0) if self.name == "hybrid" else None
        row = Row(b"call", tokens, self.done, self.blocks, draw, given)
        step, logits = self.engine.compute([row])
        with torch.inference_mode():
            step.commit()
        self.done = end
        if draw is not None:
            self.logits.append(logits[0].clone())
            self.ids = np.append(self.ids, np.int32(logits[0].argmax()))

    def until(self, generated: int, limit: int = 512) -> Call:
        while len(self.logits) < generated:
            self.step(limit)
        return self

    def check(self, reference: Reference) -> None:
        """Greedy tokens are the reference's, and all logits within the bound of it."""
        want = reference(self.name, self.ids[:-1])[len(PROMPT) - 1 :]
        got = torch.stack(self.logits)
        assert float((got - want).abs().max()) < BOUND
        assert self.ids[len(PROMPT) :].tolist() == want.argmax(-1).tolist()


def test_auto_goes_by_the_device_and_the_weights() -> None:
    assert kv_dtype_on("cpu", "auto", "float16") == "float32"
    assert kv_dtype_on("cuda:1", "auto", "float16") == "float16"
    assert kv_dtype_on("cuda", "auto", "float32") == "float32"
    assert kv_dtype_on("cuda", "float32", "float16") == "float32"
    assert kv_dtype_on("cpu", "float16", "float32") == "float16"


def test_only_what_attention_keeps_is_halved(engine: NativeEngine) -> None:
    full, half, latents, hybrid = engine.reports
    assert full.block_bytes == 2 * half.block_bytes
    assert half.kv_format == full.kv_format.replace(":float32", ":float16") != full.kv_format
    assert ":float32" not in latents.kv_format
    dtypes = {type(state): state.dtype for state in engine._models["hybrid"].shape.states}
    assert dtypes == {Recurrent: "float32", PagedKV: "float16"}
    assert hybrid.slots
    for report in engine.reports:
        assert report.block_bytes % engine.host.slab_bytes == 0
        assert report.host_block_bytes == report.block_bytes


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_stay_near_those_of_float32(
    engine: NativeEngine, reference: Reference, name: str
) -> None:
    engine.activate(name)
    whole = Call(engine, name, list(range(6))).until(8)
    whole.check(reference)
    # Attention is over what is held, so neither chunks nor places change anything but the order of
    # sums, and with it, seldom, which way a value is rounded.
    chunked = Call(engine, name, [9, 2, 7, 4, 1]).until(8, limit=77)
    assert chunked.ids.tolist() == whole.ids.tolist()
    torch.testing.assert_close(
        torch.stack(chunked.logits), torch.stack(whole.logits), atol=BOUND / 10, rtol=0
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_and_restored_elsewhere_over_switches(
    engine: NativeEngine, reference: Reference, name: str
) -> None:
    """The model between has rows of other sizes in the same arena and slabs."""
    engine.activate(name)
    untouched = Call(engine, name, list(range(6))).until(6)
    call = Call(engine, name, [8, 3, 10, 1, 6]).until(3)
    slots = [engine._models[name].plan.kv_blocks] if name == "hybrid" else []
    report = next(one for one in engine.reports if one.name == name)
    moved, first = [], 0
    for block in [*call.blocks, *slots]:
        nbytes = report.slot_bytes if block in slots else report.host_block_bytes
        slabs = nbytes // engine.host.slab_bytes
        moved.append(BlockCopy(block, tuple(range(first, first + slabs))))
        first += slabs
    ticket = TICKETS.pop()
    engine.copy_out(ticket, moved)
    assert engine.drain() == (CopyEnd(ticket),)
    engine.activate(FULL)
    Call(engine, FULL, list(range(20, 26))).until(4).check(reference)
    other = next(one for one in FAMILIES if one != name)
    engine.activate(other)
    Call(engine, other, list(range(12))).until(2).check(reference)
    assert engine.activate(name).addresses_kept
    call.blocks = [2, 0, 9, 7, 11]
    places = [*call.blocks, *slots]
    engine.copy_in([BlockCopy(b, one.slabs) for b, one in zip(places, moved, strict=True)])
    call.until(6).check(reference)
    assert call.ids.tolist() == untouched.ids.tolist()


TICKETS = list(range(len(FAMILIES), 0, -1))


def test_the_memory_map_shows_the_smaller_rows(engine: NativeEngine) -> None:
    shown = {model.model: model for model in engine.about.memory.models}
    for report in engine.reports:
        regions = [one for one in shown[report.name].regions if one.content == "kv"]
        assert sum(one.nbytes for one in regions) == report.kv_blocks * report.block_bytes


def test_keys_that_float16_cannot_hold_are_refused_by_name(
    tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = tiny_folders["llama"]
    raw = load_file(source / "model.safetensors")
    for name in raw:
        if "k_proj" in name:
            raw[name] = raw[name].float() * 1e7
    save_file(raw, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    start({"m": (tmp_path, "float32")}).close()
    with pytest.raises(EngineError, match=r"model m: .* set its kv_dtype: float32"):
        start({"m": (tmp_path, "float16")})


def test_an_unknown_kv_dtype_is_refused(tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(EngineError, match="kv_dtype: 'fp8' is not one of float16, float32"):
        start({"m": (tiny_folders["llama"], "fp8")})
