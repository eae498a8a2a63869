"""How memory maps and kernels are printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from alipes.cli.output import print_table, say
from alipes.instance.contract import Content, MemoryMap, ModelMap, Region

COLUMNS = ("model", "holds", "offset", "bytes", "layers", "rows", "row bytes")
WORDS = ("model", "holds", "layers")


def show_map(
    title: str,
    memory: MemoryMap,
    block_tokens: int,
    dtypes: Mapping[str, str],
    unfit: Sequence[str] = (),
) -> None:
    """Every model's regions, in bytes, in the order of addresses. ``dtypes`` are those of weights,
    by model; models that are ``unfit`` have no map."""
    rows = []
    for model in memory.models:
        names = [model.model, *[""] * (len(model.regions) - 1)]
        rows += [(name, *_cells(r)) for name, r in zip(names, model.regions, strict=True)]
    print_table(title, COLUMNS, rows, WORDS)
    for model in memory.models:
        say(f"{model.model}: {_words(model, block_tokens, dtypes.get(model.model, ''))}")
    for name in unfit:
        say(f"{name}: does not fit, so that nothing is laid out for it")
    kv = memory.slabs * memory.slab_bytes
    say(
        f"host: weights {memory.host_weight_bytes:,} bytes, KV {kv:,} bytes in {memory.slabs:,} "
        f"slabs of {memory.slab_bytes:,}"
    )


def _words(model: ModelMap, block_tokens: int, dtype: str) -> str:
    """What the rows of its KV are."""
    kv = [region for region in model.regions if region.content is Content.KV]
    held = "+".join(dict.fromkeys(region.state.rpartition(":")[2] for region in kv))
    rows = max((region.rows for region in kv), default=0)
    words = f"{held} KV of {rows * block_tokens:,} tokens, each row a block of {block_tokens}"
    return f"{dtype} weights, {words}" if dtype else words


def show_kernels(kernels: Mapping[str, str]) -> None:
    """One line for each variant, with the operations that it serves."""
    served: defaultdict[str, list[str]] = defaultdict(list)
    for operation, variant in sorted(kernels.items()):
        served[variant].append(operation)
    rows = [(variant, ", ".join(served[variant])) for variant in sorted(served)]
    print_table("kernels", ("variant", "operations"), rows, ("variant", "operations"))


def _cells(region: Region) -> Iterator[str]:
    layers = region.layers
    yield "KV" if region.content is Content.KV else region.content.value
    yield f"{region.offset:,}"
    yield f"{region.nbytes:,}"
    yield f"{len(layers)} ({layers[0]}-{layers[-1]})" if layers else ""
    yield f"{region.rows:,}" if region.rows else ""
    yield f"{region.row_bytes:,}" if region.rows else ""
