"""Writes model folders with weights drawn from a seed.

The scales are chosen so that what the model says depends on its whole context: unit embeddings,
an output layer of its own (a tied one would repeat the last token), attention scores with a
standard deviation of two, and norm weights that are not all one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from alipes.instance.checkpoints import hybrid
from alipes.instance.checkpoints.folder import WEIGHTS, write_json
from alipes.instance.checkpoints.shapes import config_of, tensors_of
from alipes.instance.checkpoints.sizes import SIZES
from alipes.instance.contract import RandomWeights

_COPIED = ("tokenizer.json", "generation_config.json")
_DOUBLED = ("q_proj.weight", "q_b_proj.weight", "lm_head.weight")
_HERMES = Path(__file__).parent / "data" / "hermes.jinja"


def write_random(source: RandomWeights, donor: Path, folder: Path) -> None:
    """Fills ``folder``; tokenizer, template and stop ids come from the prepared ``donor``."""
    size = SIZES[source.size]
    for name in _COPIED:
        shutil.copyfile(donor / name, folder / name)
    settings = json.loads((donor / "tokenizer_config.json").read_bytes())
    write_json(folder / "tokenizer_config.json", settings | {"model_max_length": size.context})
    template = donor / "chat_template.jinja" if source.family == "llama" else _HERMES
    shutil.copyfile(template, folder / "chat_template.jinja")
    vocab = json.loads((donor / "config.json").read_bytes())["vocab_size"]
    ends = json.loads((donor / "generation_config.json").read_bytes())["eos_token_id"]
    write_json(folder / "config.json", config_of(source.family, size, vocab, ends))
    shapes = tensors_of(source.family, size, vocab)
    tensors = {
        name: _draw(source.seed, name, shape, *_vector(source.family, name))
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _vector(family: str, name: str) -> tuple[float, float]:
    """Mean and standard deviation of a vector's elements."""
    if family in hybrid.FAMILIES:
        return hybrid.mean_of(name), hybrid.spread_of(name)
    return (2.0 if name.endswith("q_norm.weight") else 1.0), 0.1


def _draw(
    seed: int, name: str, shape: tuple[int, ...], mean: float, spread: float
) -> NDArray[np.float16]:
    """One tensor; ``mean`` and ``spread`` are for vectors, matrices keep the scale of what they
    multiply. Its values depend on the arguments alone."""
    key = hashlib.blake2b(f"{seed}/{name}/{shape}".encode(), digest_size=16).digest()
    noise = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
    values = noise.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        scaled = mean + spread * values
    elif name == "model.embed_tokens.weight":
        scaled = values
    else:
        gain = 2.0 if name.endswith(_DOUBLED) else 1.0
        scaled = values * (gain / float(np.sqrt(shape[-1])))
    return scaled.astype(np.float16)
