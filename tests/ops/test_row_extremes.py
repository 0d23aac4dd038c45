"""Whether numbers need a scale: the compiled kernel against the reference."""

import pytest
import torch

from topomask.ops.row_extremes import numba, reference

ROWS = {
    "usual": (torch.randn(40, 5), False),
    "zero rows": (torch.zeros(40, 5), False),
    "no rows": (torch.zeros(0, 5), False),
    "one large": (torch.ones(40, 5).index_put((torch.tensor(39), torch.tensor(4)), torch.tensor(-2000.0)), True),
    "one small row": (torch.ones(40, 5).index_put((torch.tensor(7),), torch.tensor(1e-9)), True),
    "small beside large": (torch.tensor([[1e-9, 1.0]]), False),
    "infinite": (torch.tensor([[1.0], [torch.inf]]), True),
}


@pytest.mark.parametrize("name", ROWS)
def test_extremes(name):
    rows, expected = ROWS[name]
    for x in (rows, rows.double(), rows.reshape(1, *rows.shape).mT.contiguous().mT):
        assert reference.any_extreme(x, 1000.0) is expected
        assert numba.any_extreme(x, 1000.0) is expected
