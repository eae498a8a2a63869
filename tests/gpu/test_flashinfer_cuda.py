"""FlashInfer on a device, against the reference."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from alipes.kernels import reference
from alipes.kernels.shapes import Segment, Workspace
from alipes.kernels.table import kernels_for, variants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer"),
]
PAGE = 64


@pytest.mark.parametrize(("queries", "keys", "dim"), [(9, 3, 64), (16, 2, 128)])
def test_attend(queries: int, keys: int, dim: int) -> None:
    """A first chunk, a later one over scattered blocks, and single rows, of which one is split;
    the next batch is planned while the last one may still be running."""
    torch.manual_seed(2)
    cuda = torch.device("cuda")
    column = kernels_for(cuda, None, frozenset({("float16", dim)}))
    assert variants(column)["attend"] == "flashinfer_attention"
    pool = torch.randn(160 * PAGE, 2, keys, dim, device=cuda).half()
    none = pool.new_empty(0)
    scratch = Workspace(none, none)
    scattered = tuple((PAGE * block, PAGE) for block in range(150, 130, -2))
    batches = [
        (
            Segment(0, 200, 0, ((0, 200),), PAGE),
            Segment(200, 77, 563, scattered, PAGE),
            Segment(277, 1, 4999, ((PAGE * 4, 5000),), PAGE),
            Segment(278, 1, 0, ((PAGE * 159, 1),), PAGE),
        ),
        (Segment(0, 1, 700, ((PAGE * 100, 701),), PAGE),),
    ]
    with torch.inference_mode():
        inputs = [torch.randn(b[-1].first + 1, queries, dim, device=cuda) for b in batches]
        pairs = list(zip(inputs, batches, strict=True))
        found = [column.attend(q, none, pool, batch, scratch) for q, batch in pairs]
        for got, (q, batch) in zip(found, pairs, strict=True):
            want = reference.attend(q, none, pool, batch, scratch)
            torch.testing.assert_close(got, want, atol=4e-3, rtol=4e-3)
