from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from alipes.instance.checkpoints import sources
from alipes.instance.checkpoints.folder import MANIFEST, SourceError, digest
from alipes.instance.checkpoints.shapes import FAMILIES
from alipes.instance.checkpoints.sources import SMOLLM2, folder_of, is_prepared, prepare
from alipes.instance.contract import LocalFolder, PackagedGguf, RandomWeights


def recorded(folder: Path) -> str:
    return str(json.loads((folder / MANIFEST).read_bytes())["revision"])


def quiet(what: str, fraction: float) -> None:
    assert what
    assert 0 <= fraction <= 1


@pytest.fixture
def cache(tmp_path: Path, smollm2_folder: Path) -> Path:
    """A cache of its own that already holds SmolLM2."""
    (tmp_path / smollm2_folder.name).symlink_to(smollm2_folder)
    return tmp_path


def test_a_folder_is_named_by_its_whole_source(tmp_path: Path) -> None:
    made = [RandomWeights("llama", "tiny", seed) for seed in (0, 1)]
    names = {folder_of(source, tmp_path).name for source in (*made, SMOLLM2)}
    assert len(names) == 3
    assert folder_of(LocalFolder("~/x"), tmp_path) == Path("~/x").expanduser()
    assert not any(tmp_path.iterdir())


def test_smollm2_answers(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    assert "lm_head.weight" not in load_file(smollm2_folder / "model.safetensors")
    assert model.generation_config.eos_token_id == [2, 0]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(out[0][inputs.input_ids.shape[1] :]) == (
        "The capital of France is Paris.<|im_end|>"
    )


def test_digits_stand_alone_as_smollm2_was_trained(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    assert tokenizer.tokenize("a  12") == ["a", "\u0120\u0120", "1", "2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_depend_on_their_context(tiny_folders: dict[str, Path], family: str) -> None:
    folder = tiny_folders[family]
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.max_position_embeddings == 8192
    ids = torch.randint(0, 49152, (1, 64), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, 0] += 1
    with torch.no_grad():
        logits, changed = model(ids).logits[0], model(other).logits[0]
    assert len(set(logits.argmax(-1).tolist())) > 32
    assert (logits[-1] - changed[-1]).abs().max() > 1e-3


def test_a_seed_gives_the_same_bytes(cache: Path, tiny_folders: dict[str, Path]) -> None:
    again = prepare(RandomWeights("qwen3-moe", "tiny"), cache, quiet)
    other = prepare(RandomWeights("qwen3-moe", "tiny", seed=1), cache, quiet)
    first = tiny_folders["qwen3-moe"]
    assert recorded(again) == recorded(first)
    assert (again / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert recorded(other) != recorded(first)


def test_a_local_folder_is_used_in_place(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tiny_folders["llama"]
    assert prepare(LocalFolder(str(folder)), tmp_path, quiet) == folder
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "alipes.json").unlink()
    assert digest(copy) == recorded(folder)
    (copy / "tokenizer.json").unlink()
    assert not is_prepared(copy)
    with pytest.raises(SourceError, match=r"copy'?: tokenizer\.json is missing"):
        prepare(LocalFolder(str(copy)), tmp_path, quiet)


def test_a_missing_shard_is_named(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_folders["llama"], tmp_path / "copy")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    (copy / "model.safetensors").rename(copy / "model-1.safetensors")
    with pytest.raises(SourceError, match=r"model-2\.safetensors is missing"):
        prepare(LocalFolder(str(copy)), tmp_path, quiet)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (LocalFolder("/nowhere"), "source.path '/nowhere': no such folder"),
        (RandomWeights("gpt", "tiny"), "source.family 'gpt': use one of llama, qwen3, qwen3-moe"),
        (RandomWeights("llama", "huge"), "source.size 'huge': use one of tiny, small"),
        (PackagedGguf("not a name!", "x.gguf"), "source.requirement 'not a name!'"),
    ],
)
def test_errors_name_field_and_remedy(
    tmp_path: Path, source: sources.ModelSource, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        prepare(source, tmp_path, quiet)


def test_a_failed_attempt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    monkeypatch.setattr(sources, "find_file", lambda *_: broken)
    source = PackagedGguf("some-package==1", "broken.gguf")
    with pytest.raises(SourceError, match=r"source.file 'broken.gguf': conversion failed"):
        prepare(source, tmp_path / "cache", quiet)
    assert not is_prepared(folder_of(source, tmp_path / "cache"))
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [".locks"]


def test_two_at_once_make_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    write = sources.write_random

    def counted(source: RandomWeights, donor: Path, folder: Path) -> None:
        made.append(folder)
        write(source, donor, folder)

    monkeypatch.setattr(sources, "write_random", counted)
    source = RandomWeights("llama", "tiny", seed=5)
    threads = [threading.Thread(target=prepare, args=(source, cache, quiet)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert is_prepared(folder_of(source, cache))


def test_a_half_made_folder_of_a_killed_process_is_replaced(cache: Path) -> None:
    source = RandomWeights("llama", "tiny", seed=6)
    folder = folder_of(source, cache)
    partial = folder.with_name(f".{folder.name}.partial")
    for stale in (folder, partial):
        stale.mkdir()
        (stale / "config.json").write_text("{}")
    assert is_prepared(prepare(source, cache, quiet))
    assert not partial.exists()


def test_planning_code_loads_no_torch() -> None:
    code = (
        "import sys, alipes.instance.checkpoints.sources; "
        "print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
