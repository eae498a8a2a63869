"""Converts one GGUF file into a Hugging Face folder; run as a process of its own.

``python -m alipes.instance.checkpoints.convert FILE FOLDER`` keeps torch and the peak of about
six bytes a parameter out of the caller's process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from alipes.instance.checkpoints.folder import WEIGHTS, write_json

_END_OF_TEXT = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")


def convert(gguf: Path, folder: Path) -> None:
    """Writes float16 weights (a tied output layer left out), config, tokenizer and template."""
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    _write_tokenizer(tokenizer, _field(gguf, "tokenizer.ggml.pre"), model.config, folder)
    _write_configs(model, tokenizer, folder)
    if any(".experts." in name for name in model.state_dict()):
        raise SystemExit("mixtures of experts are not converted; use their safetensors folder")
    state = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def _field(gguf: Path, name: str) -> str:
    field = GGUFReader(gguf).get_field(name)
    return str(field.contents()) if field else ""


def _write_tokenizer(tokenizer: Any, kind: str, config: Any, folder: Path) -> None:
    backend = tokenizer.backend_tokenizer
    if kind == "smollm":
        # The file names the splitting rule, transformers reads only vocabulary and merges: digits
        # stand alone, which changes how spaces before them are grouped.
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    backend.save(str(folder / "tokenizer.json"))
    special = tokenizer.special_tokens_map
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    write_json(folder / "tokenizer_config.json", settings)
    if tokenizer.chat_template:
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template)


def _write_configs(model: Any, tokenizer: Any, folder: Path) -> None:
    config = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "unk_token_id"):
        config.pop(name, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float16"
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    write_json(folder / "config.json", config)
    known = tokenizer.get_vocab()
    named = [known[token] for token in _END_OF_TEXT if token in known]
    generation = {name: config.get(name) for name in ("bos_token_id", "pad_token_id")}
    ends = dict.fromkeys([config.get("eos_token_id"), *named])
    generation["eos_token_id"] = [number for number in ends if number is not None]
    write_json(folder / "generation_config.json", generation)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
