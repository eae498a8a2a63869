"""How memory maps and kernels are printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from alipes.cli.output import print_table, say
from alipes.instance.contract import Content, MemoryMap, Region

COLUMNS = ("model", "holds", "offset", "bytes", "layers", "rows", "row bytes")
WORDS = ("model", "holds", "layers")


def show_map(title: str, memory: MemoryMap) -> None:
    """Every model's regions, in bytes, in the order of addresses."""
    rows = []
    for model in memory.models:
        names = [model.model, *[""] * (len(model.regions) - 1)]
        rows += [(name, *_cells(r)) for name, r in zip(names, model.regions, strict=True)]
    print_table(title, COLUMNS, rows, WORDS)
    kv = memory.slabs * memory.slab_bytes
    say(
        f"host: weights {memory.host_weight_bytes:,} bytes, KV {kv:,} bytes in {memory.slabs:,} "
        f"slabs of {memory.slab_bytes:,}"
    )


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
