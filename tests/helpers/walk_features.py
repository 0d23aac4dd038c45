"""How features of walks are compared."""

import torch

from topomask.walks import WalkFeatures


def assert_same(a: WalkFeatures, b: WalkFeatures) -> None:
    """Bit for bit."""
    assert (a.num_heads, a.num_rows, a.num_columns) == (b.num_heads, b.num_rows, b.num_columns)
    for name, tensor in a.state().items():
        assert torch.equal(tensor, b.state()[name]), name
