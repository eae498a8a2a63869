from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from alipes.instance.engine.native.checkpoint import check_weights, read_header
from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.families.read import read_config
from alipes.instance.engine.native.layout import Halves, Layout, Packer, Part
from alipes.instance.engine.native.parallel.share import Share
from alipes.instance.engine.native.shape import pack_layout
from alipes.instance.engine.native.weights import load_packed, view


def layout_of(folder: Path, dtype: str = "float32") -> Layout:
    return pack_layout(read_config(folder), dtype)


def copy_with(folder: Path, to: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (to / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, to / "model.safetensors")
    return to


@pytest.fixture
def moe(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["qwen3-moe"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_tensors_are_the_checkpoints(moe: Path, dtype: str) -> None:
    raw = load_file(moe / "model.safetensors")
    layout, dim = layout_of(moe, dtype), 16
    host = load_packed(moe, layout)
    qkv = view(host, layout["layers.1.qkv"]).float()
    attn = "model.layers.1.self_attn."
    values = raw[attn + "v_proj.weight"].float()
    assert torch.equal(qkv[-len(values) :], values)
    halves = raw[attn + "q_proj.weight"].float()[:dim]
    assert torch.equal(qkv[:dim:2], halves[: dim // 2])
    assert torch.equal(qkv[1:dim:2], halves[dim // 2 :])
    gate_up = view(host, layout["layers.0.experts_gate_up"]).float()
    up = raw["model.layers.0.mlp.experts.3.up_proj.weight"].float()
    assert torch.equal(gate_up[3, len(up) :], up)


def stack_experts(moe: Path, to: Path) -> Path:
    raw = load_file(moe / "model.safetensors")
    stacked = {k: v for k, v in raw.items() if ".experts." not in k}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}.mlp.experts."
        one = [
            {n: raw[f"{prefix}{e}.{n}_proj.weight"] for n in ("gate", "up", "down")}
            for e in range(4)
        ]
        stacked[prefix + "gate_up_proj"] = torch.stack(
            [torch.cat([e["gate"], e["up"]]) for e in one]
        )
        stacked[prefix + "down_proj"] = torch.stack([e["down"] for e in one])
    return copy_with(moe, to, stacked)


def test_experts_may_be_stored_stacked(moe: Path, tmp_path: Path) -> None:
    other, layout = stack_experts(moe, tmp_path), layout_of(moe)
    check_weights(other, layout)
    assert torch.equal(load_packed(other, layout), load_packed(moe, layout))


def shares(folder: Path) -> list[tuple[torch.Tensor, Layout]]:
    layouts = [pack_layout(read_config(folder).divided(Share(r, 2)), "float32") for r in (0, 1)]
    for layout in layouts:
        check_weights(folder, layout)
    return [(load_packed(folder, layout), layout) for layout in layouts]


def test_what_two_ranks_have_is_the_whole_model(moe: Path) -> None:
    layout = layout_of(moe)
    whole = load_packed(moe, layout)
    parts = shares(moe)

    def both(name: str, cuts: list[int]) -> list[torch.Tensor]:
        each = [view(host, layout[name]).split(cuts, -2) for host, layout in parts]
        return [torch.cat(rows, -2) for rows in zip(*each, strict=True)]

    # 4 query heads and 2 of keys and values, of 16 elements; an intermediate size of 32.
    qkv = view(whole, layout["layers.0.qkv"])
    assert torch.equal(torch.cat(both("layers.0.qkv", [32, 16, 16])), qkv)
    experts = view(whole, layout["layers.1.experts_gate_up"])
    half = parts[0][1]["layers.1.experts_gate_up"].shape[1] // 2
    assert torch.equal(torch.cat(both("layers.1.experts_gate_up", [half, half]), 1), experts)
    for name in ("layers.0.out", "layers.1.experts_down"):
        columns = [view(host, own[name]) for host, own in parts]
        assert torch.equal(torch.cat(columns, -1), view(whole, layout[name]))
    for name in ("embed", "layers.0.router", "layers.1.mlp_norm"):
        assert all(torch.equal(view(h, own[name]), view(whole, layout[name])) for h, own in parts)


def test_stacked_experts_are_divided_too(moe: Path, tmp_path: Path) -> None:
    other = stack_experts(moe, tmp_path)
    for (host, _), (want, _) in zip(shares(other), shares(moe), strict=True):
        assert torch.equal(host, want)


@pytest.mark.parametrize(
    ("family", "ranks", "what"),
    [
        ("llama", 4, "num_key_value_heads: 2"),
        ("qwen3", 3, "num_attention_heads: 4"),
        ("qwen3-next", 4, "linear_num_key_heads: 2"),
    ],
)
def test_a_model_that_does_not_divide_is_refused(
    tiny_folders: dict[str, Path], family: str, ranks: int, what: str
) -> None:
    with pytest.raises(ModelError, match=what):
        read_config(tiny_folders[family]).divided(Share(0, ranks))


def test_weights_may_be_in_several_files(moe: Path, tmp_path: Path) -> None:
    raw = load_file(moe / "model.safetensors")
    names = sorted(raw)
    copy_with(moe, tmp_path, {k: raw[k] for k in names[::2]})
    save_file({k: raw[k] for k in names[1::2]}, tmp_path / "model-2.safetensors")
    layout = layout_of(moe)
    assert torch.equal(load_packed(tmp_path, layout), load_packed(moe, layout))


def test_faults_name_tensor_and_file(moe: Path, tmp_path: Path) -> None:
    layout = layout_of(moe)
    with pytest.raises(ModelError, match=r"has no \*\.safetensors file"):
        check_weights(tmp_path, layout)
    raw = load_file(moe / "model.safetensors")
    norm = raw.pop("model.norm.weight")
    copy_with(moe, tmp_path, raw)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is missing"):
        check_weights(tmp_path, layout)
    copy_with(moe, tmp_path, raw | {"model.norm.weight": norm[:5].clone()})
    with pytest.raises(ModelError, match=r"has shape \(5,\), config\.json says \(64,\)"):
        check_weights(tmp_path, layout)
    copy_with(moe, tmp_path, raw | {"model.norm.weight": norm.to(torch.int8)})
    with pytest.raises(ModelError, match=r"model\.norm\.weight is I8"):
        read_header(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="no safetensors header"):
        read_header(tmp_path)


def test_a_missing_expert_is_named(moe: Path, tmp_path: Path) -> None:
    raw = load_file(moe / "model.safetensors")
    raw.pop("model.layers.0.mlp.experts.2.up_proj.weight")
    with pytest.raises(ModelError, match=r"experts\.2\.up_proj\.weight is missing"):
        check_weights(copy_with(moe, tmp_path, raw), layout_of(moe))
    config = json.loads((moe / "config.json").read_text())
    assert config["num_experts"] == 4


def test_rotary_rows_may_be_some_of_each_head(tmp_path: Path) -> None:
    rows = torch.arange(20, dtype=torch.float32)
    save_file({"w": rows.unsqueeze(1)}, tmp_path / "model.safetensors")
    packer = Packer("float32")
    packer.matrix("w", Part("w", (20, 1), Halves(head=10, first=3, dim=6)))
    layout = packer.layout()
    got = view(load_packed(tmp_path, layout), layout["w"]).flatten().tolist()
    head = [0, 1, 2, 3, 6, 4, 7, 5, 8, 9]
    assert got == head + [10 + row for row in head]
