"""Variations of Qwen3-Next and Qwen3.5 against transformers, and what a step leaves in slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.batch import Bounds, build_batch
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.families.read import read_config
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.engine.native.passes import Pass
from alipes.instance.engine.native.shape import pack_layout
from alipes.instance.engine.native.weights import load_packed, view
from alipes.instance.engine.protocol import Draw, EngineError, Recurrence, Row
from alipes.instance.memory.specs import Recurrent
from alipes.kernels.shapes import Workspace
from alipes.kernels.table import REFERENCE

PROMPT = np.random.default_rng(5).integers(0, 2000, 150).astype(np.int32)
BLOCKS = (4, 1, 2, 7)


def start(folder: Path, dtype: str = "float32") -> NativeEngine:
    settings = InstanceSettings(
        name="hybrid",
        pool=Pool.COLD,
        models=(ModelSettings("m", str(folder), dtype),),
        targets=Targets(),
        endpoint="",
        device_bytes=64 << 20,
        host_bytes=1 << 20,
        max_running=4,
    )
    engine = NativeEngine(settings)
    engine.activate("m")
    return engine


def step(engine: NativeEngine, ids: Any, start: int, temperature: float = 0) -> int:
    draw = Draw(Sampling(temperature=temperature), ids, len(PROMPT))
    given = Recurrence(2 if start else None, 2)
    return engine.step([Row(b"a", ids[start:], start, BLOCKS, draw, given)])[0].token


def generate(engine: NativeEngine, count: int) -> list[int]:
    ids = np.append(PROMPT, np.int32(step(engine, PROMPT, 0)))
    while len(ids) < len(PROMPT) + count:
        ids = np.append(ids, np.int32(step(engine, ids, len(ids) - 1)))
    return ids[len(PROMPT) :].tolist()


def check_greedy(folder: Path, drawn: list[int], gap: float = 1e-3) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.concatenate([PROMPT, drawn]).astype(np.int64)[None]
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids), use_cache=False).logits[0, len(PROMPT) - 1 : -1]
    for row, token in zip(logits, drawn, strict=True):
        best = row.topk(2)
        if int(best.indices[0]) != token:
            assert float(best.values[0] - best.values[1]) < gap
            return


SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}


def hybrid_model(folder: Path, kind: str, **changes: Any) -> Path:
    """A random model of transformers' own making; norms and rates differ from layer to layer."""
    torch.manual_seed(3)
    names = AutoConfig.for_model(kind).to_dict()
    fields = {key: value for key, value in (SIZES | changes).items() if key in names}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    for name, tensor in model.named_parameters():
        if tensor.dim() == 1 and "A_log" not in name:
            tensor.data.add_(0.3 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    return folder


MOE = {"mlp_only_layers": [1], "decoder_sparse_step": 1}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3_next", MOE),
        ("qwen3_next", {"linear_num_value_heads": 2, "norm_topk_prob": False, "num_experts": 4}),
        ("qwen3_next", {"decoder_sparse_step": 2, "linear_conv_kernel_dim": 2}),
        ("qwen3_next", {"layer_types": ["full_attention", "linear_attention"] * 2}),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 3 + ["full_attention"]} | MOE),
        ("qwen3_5_text", {"tie_word_embeddings": True}),
        ("qwen3_5_text", {"head_dim": 32, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-3}),
        ("qwen3_5_moe_text", {}),
    ],
)
def test_variations_match_transformers(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    folder = hybrid_model(tmp_path / "model", kind, **changes)
    engine = start(folder)
    check_greedy(folder, generate(engine, 10))
    engine.close()


def test_float16_stays_near_float32(tmp_path: Path) -> None:
    folder = hybrid_model(tmp_path / "model", "qwen3_5_text")
    engine = start(folder, "float16")
    check_greedy(folder, generate(engine, 10), gap=0.05)
    engine.close()


def test_states_of_a_step_that_overflowed_are_those_of_its_repetition(
    tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = tiny_folders["qwen3.5"]
    raw = load_file(source / "model.safetensors")
    for name in raw:
        if "up_proj" in name or "gate_proj" in name:
            raw[name] = raw[name] * 2000.0
    save_file(raw, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    drawn = []
    for dtype in ("float16", "float32"):
        engine = start(tmp_path, dtype)
        drawn.append(generate(engine, 8))
        engine.close()
    assert drawn[0] == drawn[1]


def test_a_refused_step_leaves_the_slots_as_they_were(tmp_path: Path) -> None:
    folder = hybrid_model(tmp_path / "model", "qwen3_5_text")
    raw = load_file(folder / "model.safetensors")
    raw["model.embed_tokens.weight"][7] = float("nan")
    save_file(raw, folder / "model.safetensors")
    engine = start(folder)
    want = generate(engine, 8)
    assert 7 not in want
    ids = np.append(PROMPT, np.int32(step(engine, PROMPT, 0)))
    bad = ids.copy()
    bad[-1] = 7
    with pytest.raises(EngineError, match="its logits are no numbers"):
        step(engine, bad, len(PROMPT), temperature=1)
    for _ in want[1:]:
        ids = np.append(ids, np.int32(step(engine, ids, len(ids) - 1)))
    assert ids[len(PROMPT) :].tolist() == want
    engine.close()


def mixed(folder: Path, share: Share, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What a rank's part of the first layer makes of (n, hidden), and the state it leaves."""
    config = read_config(folder).divided(share)
    layout, mixer = pack_layout(config, "float32"), config.layers[0].mixer
    host, prefix = load_packed(folder, layout), "layers.0."
    weights = {
        packed.name.removeprefix(prefix): view(host, packed)
        for packed in layout.tensors
        if packed.name.startswith(prefix)
    }
    assert isinstance(mixer.state, Recurrent)
    state = tuple(torch.zeros(1, *shape) for shape in mixer.state.shapes)
    row = Row(b"a", PROMPT[: len(x)], 0, range(9), None, Recurrence(None, 0))
    batch = build_batch([row], Bounds(64, 9, 512, 2000, slots=1), torch.device("cpu"))
    step = Pass(batch, {}, REFERENCE, Workspace(torch.empty(0), torch.empty(0)))
    out = mixer.forward(x, state, weights, step, None)
    step.commit()
    return out, [tensor[0] for tensor in state]


@pytest.mark.parametrize("family", ["qwen3-next", "qwen3.5"])
def test_the_parts_of_all_ranks_add_up_to_the_whole(
    tiny_folders: dict[str, Path], family: str
) -> None:
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(4))
    want, (state, seen) = mixed(tiny_folders[family], WHOLE, x)
    parts = [mixed(tiny_folders[family], Share(rank, 2), x) for rank in (0, 1)]
    torch.testing.assert_close(parts[0][0] + parts[1][0], want)
    torch.testing.assert_close(torch.cat([part[1][0] for part in parts]), state)
    # Queries, keys and values of all ranks, in turn.
    pieces = zip(*(part[1][1].split([32, 32, 64]) for part in parts), strict=True)
    torch.testing.assert_close(torch.cat([torch.cat(piece) for piece in pieces]), seen)
