from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from alipes.instance.checkpoints import latent
from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    TokenIds,
)
from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.staging import device_memory
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    Draw,
    EngineError,
    Row,
    SwitchReport,
)

GREEDY = Sampling(temperature=0)
PROMPT = np.random.default_rng(0).integers(0, 2000, 150).astype(np.int32)


def start(folders: dict[str, Path], dtype: str = "float32", **changes: Any) -> NativeEngine:
    models = tuple(ModelSettings(name, str(f), dtype) for name, f in folders.items())
    fields = {"device_bytes": 96 << 20, "host_bytes": 1 << 20, "name": "i0", "endpoint": ""}
    settings = InstanceSettings(
        **(fields | {"pool": Pool.COLD, "models": models, "targets": Targets()} | changes)
    )
    return NativeEngine(settings)


def step(engine: NativeEngine, ids: TokenIds, start: int = 0, blocks: Any = range(8)) -> int:
    row = Row(b"a", ids[start:], start, list(blocks), Draw(GREEDY, ids, len(ids)))
    return engine.step([row])[0].token


def generate(engine: NativeEngine, count: int, blocks: Any = range(8)) -> TokenIds:
    ids = np.append(PROMPT, np.int32(step(engine, PROMPT, blocks=blocks)))
    while len(ids) < len(PROMPT) + count:
        ids = np.append(ids, np.int32(step(engine, ids, len(ids) - 1, blocks)))
    return ids


def reference(folder: Path, ids: TokenIds) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    return logits


def check_greedy(folder: Path, ids: TokenIds, gap: float = 1e-3) -> None:
    for row, token in zip(reference(folder, ids)[len(PROMPT) - 1 : -1], ids[150:], strict=True):
        best = row.topk(2)
        if int(best.indices[0]) != token:
            assert float(best.values[0] - best.values[1]) < gap
            return


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[NativeEngine]:
    engine = start(tiny_folders)
    yield engine
    engine.close()


def test_it_tells_who_has_which_bytes_and_which_kernels(engine: NativeEngine) -> None:
    shown, kernels = engine.about.memory, engine.about.kernels
    reports = {report.name: report for report in engine.reports}
    assert [model.model for model in shown.models] == list(reports)
    assert (shown.backend, shown.switching) in {("plain", "h2d"), ("mapped", "remap")}
    assert (shown.slab_bytes, shown.slabs) == (engine.host.slab_bytes, engine.host.count)
    for model in shown.models:
        report, nbytes = reports[model.model], Counter[str]()
        for region in model.regions:
            nbytes[region.content] += region.nbytes
        assert nbytes.total() == shown.device_bytes == 96 << 20
        assert nbytes["weights"] == report.weight_bytes
        assert nbytes["kv"] == report.kv_blocks * report.block_bytes
        assert nbytes["slots"] == report.slots * report.slot_bytes
    assert (kernels["linear"], kernels["attend"]) == ("cpu", "cpu_attention")


LATENT = {
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "kv_lora_rank": 20,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 6,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "topk_group": 2,
    "v_head_dim": 12,
}
SPARSE = LATENT | {"index_topk": 256, "index_n_heads": 2, "index_head_dim": 16}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}


def odd_model(folder: Path, kind: str, **changes: Any) -> Path:
    """A tiny random model of transformers' own making, its weights large enough to matter."""
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 2000,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = AutoConfig.for_model(kind, **(sizes | changes))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 6, "head_dim": 8}),
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 32, "num_key_value_heads": 3}),
        ("qwen3_moe", {"mlp_only_layers": [1], "num_experts": 9, "moe_intermediate_size": 24}),
        (
            "qwen3_moe",
            {
                "decoder_sparse_step": 2,
                "num_experts": 4,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 40,
                "norm_topk_prob": False,
            },
        ),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
        ("qwen3", {"rope_parameters": YARN | {"truncate": False}}),
        ("deepseek_v2", LATENT | {"q_lora_rank": None}),
        (
            "deepseek_v2",
            LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0},
        ),
        (
            "deepseek_v2",
            LATENT | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}},
        ),
        ("deepseek_v3", LATENT),
        (
            "deepseek_v3",
            LATENT
            | {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False}
            | {"rope_parameters": YARN | {"mscale_all_dim": 1.0}},
        ),
        ("deepseek_v32", SPARSE),
        ("glm_moe_dsa", SPARSE | {"mlp_layer_types": ["sparse", "dense", "sparse"]}),
    ],
)
def test_family_variations_match_transformers(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    folder = odd_model(tmp_path / "model", kind, **changes)
    engine = start({"m": folder})
    engine.activate("m")
    check_greedy(folder, generate(engine, 10, blocks=[4, 1, 2, 7]))
    engine.close()


def test_sparse_attention_is_exact_up_to_the_last_position_served(tmp_path: Path) -> None:
    folder = odd_model(tmp_path / "model", "glm_moe_dsa", **SPARSE)
    engine = start({"m": folder})
    engine.activate("m")
    ids = generate(engine, 256 - 150 + 1, blocks=range(5))
    check_greedy(folder, ids)
    with pytest.raises(EngineError, match="position 257 is beyond the context of 256"):
        step(engine, ids, 256)
    engine.close()


def test_float16_stays_near_float32(smollm2_folder: Path) -> None:
    engine = start({"m": smollm2_folder}, "float16", device_bytes=700 << 20)
    engine.activate("m")
    ids = generate(engine, 12)
    # Weights are stored in float16, so only the products are rounded.
    check_greedy(smollm2_folder, ids, gap=0.05)
    engine.close()


def test_float16_overflow_is_computed_again(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    source = tiny_folders["llama"]
    raw = load_file(source / "model.safetensors")
    for name in raw:
        if "up_proj" in name or "gate_proj" in name:
            raw[name] = raw[name] * 2000.0
    save_file(raw, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    half, full = start({"m": tmp_path}, "float16"), start({"m": tmp_path}, "float32")
    drawn = []
    for engine in (half, full):
        engine.activate("m")
        drawn.append(generate(engine, 8).tolist())
        engine.close()
    assert drawn[0] == drawn[1]


def test_reports_name_the_format_and_the_room(
    engine: NativeEngine, tiny_folders: dict[str, Path]
) -> None:
    formats = {report.kv_format for report in engine.reports}
    assert len(formats) == len(tiny_folders)
    for report in engine.reports:
        assert report.context == (4096 if report.name == "glm5" else 8192)
        assert report.kv_blocks * report.block_bytes + report.weight_bytes < 96 << 20
        states = "1*recurrent4x32x32+256x3:float32+1*kv2x16" if report.slots else "2*kv2x16"
        states = "2*latent64" if report.name in latent.FAMILIES else states
        assert report.kv_format.endswith(f":{states}:float32:interleaved:64")
    assert engine.kind == "native"


def test_the_format_changes_with_whatever_shapes_kv(
    tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = tiny_folders["llama"]
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    formats = []
    for changes in ({}, {"rope_parameters": {"rope_theta": 777.0}}, {"rms_norm_eps": 1e-3}):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        engine = start({"m": tmp_path})
        formats.append(engine.reports[0].kv_format)
        engine.close()
    first = start({"m": source})
    assert first.reports[0].kv_format == formats[0]
    first.close()
    assert len(set(formats)) == 3
    assert len({name.split(":")[0] for name in formats}) == 1


def test_a_switch_is_told_and_comes_back_to_its_addresses(engine: NativeEngine) -> None:
    engine.activate("llama")
    before = generate(engine, 4).tolist()
    switched = engine.activate("qwen3")
    assert switched.h2d_bytes + switched.on_device_bytes == engine.reports[1].weight_bytes
    assert switched.seconds > 0
    assert engine.activate("qwen3") == SwitchReport()
    generate(engine, 4)
    assert engine.activate("llama").addresses_kept
    assert generate(engine, 4).tolist() == before


def test_a_region_that_has_moved_is_noticed_and_bound_again(engine: NativeEngine) -> None:
    engine.activate("llama")
    before = generate(engine, 4).tolist()
    engine.activate("qwen3")
    arena = engine._arena
    old = arena.memory.data
    arena.memory = device_memory(len(old), old.device, engine._stager.switching)
    arena.memory.data.copy_(old)
    assert not engine.activate("llama").addresses_kept
    old[: 64 << 20].fill_(255)
    assert generate(engine, 4).tolist() == before
    assert not engine.activate("qwen3").addresses_kept
    assert engine.activate("llama").addresses_kept


def copies(engine: NativeEngine, model: int, blocks: Sequence[int]) -> list[BlockCopy]:
    """Each of ``blocks`` with slabs of its own, the lowest first."""
    each = engine.reports[model].block_bytes // engine.host.slab_bytes
    return [BlockCopy(b, tuple(range(i * each, (i + 1) * each))) for i, b in enumerate(blocks)]


def test_state_on_the_host_is_exact(engine: NativeEngine) -> None:
    engine.activate("qwen3")
    ids = generate(engine, 20)
    want = generate(engine, 40).tolist()
    engine.copy_out(1, copies(engine, 1, [0, 1, 2]))
    with pytest.raises(EngineError, match="drain them before llama becomes active"):
        engine.activate("llama")
    assert engine.drain() == (CopyEnd(1),)
    engine.activate("llama")
    generate(engine, 4)
    engine.activate("qwen3")
    blocks = [30, 21, 25]
    engine.copy_in(copies(engine, 1, blocks))
    while len(ids) < len(want):
        ids = np.append(ids, np.int32(step(engine, ids, len(ids) - 1, blocks)))
    assert ids.tolist() == want


def test_the_beginning_is_restored_and_the_rest_computed(engine: NativeEngine) -> None:
    engine.activate("qwen3-moe")
    want = generate(engine, 8).tolist()
    engine.copy_out(2, copies(engine, 2, [0, 1]))
    engine.drain()
    engine.activate("llama")
    engine.activate("qwen3-moe")
    blocks = [9, 4, 2]
    engine.copy_in(copies(engine, 2, blocks[:1]))
    ids = np.append(PROMPT, np.int32(step(engine, PROMPT, 64, blocks)))
    while len(ids) < len(want):
        ids = np.append(ids, np.int32(step(engine, ids, len(ids) - 1, blocks)))
    assert ids.tolist() == want


def test_host_memory_is_one_pool_of_slabs_that_divide_all_blocks(engine: NativeEngine) -> None:
    host = engine.host
    assert host.count == (1 << 20) // host.slab_bytes
    for report in engine.reports:
        assert report.block_bytes % host.slab_bytes == 0


def test_a_ticket_that_does_not_rise_is_refused(engine: NativeEngine) -> None:
    engine.activate("llama")
    engine.copy_out(10, copies(engine, 0, [0]))
    engine.drain()
    with pytest.raises(EngineError, match="copy 10 comes after 10"):
        engine.copy_out(10, copies(engine, 0, [0]))


def test_rows_that_only_prefill_draw_nothing(engine: NativeEngine) -> None:
    engine.activate("qwen3-moe")
    want = step(engine, PROMPT)
    prefill = Row(b"a", PROMPT[:100], 0, [9, 10, 11], None)
    assert engine.step([prefill]) == ()
    assert step(engine, PROMPT, 100, [9, 10, 11]) == want


def test_refusals_name_what_is_wrong(
    engine: NativeEngine, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="model x is not one of"):
        engine.activate("x")
    fresh = start({"m": tiny_folders["llama"]})
    with pytest.raises(EngineError, match="activate one first"):
        step(fresh, PROMPT)
    with pytest.raises(EngineError, match="activate one first"):
        fresh.copy_in([])
    with pytest.raises(EngineError, match=r"model m needs .* but device_bytes is 1,024"):
        start({"m": tiny_folders["llama"]}, device_bytes=1024)
    config = json.loads((tiny_folders["llama"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Other"]}))
    with pytest.raises(ModelError, match="Other is not one of"):
        start({"m": tmp_path})


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(device == "cuda:1"))
    with pytest.raises(EngineError, match=f"device {device}: .* set device: cpu"):
        start({"llama": tiny_folders["llama"]}, device=device)


def test_a_broken_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"config\.json"):
        start({"llama": tmp_path})
