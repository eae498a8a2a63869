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
    then another batch, planned in the place of that one."""
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
        for batch in batches:
            q = torch.randn(batch[-1].first + 1, queries, dim, device=cuda)
            for _ in range(2):
                got = column.attend(q, none, pool, batch, scratch)
                want = reference.attend(q, none, pool, batch, scratch)
                torch.testing.assert_close(got, want, atol=4e-3, rtol=4e-3)
