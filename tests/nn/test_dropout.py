import math

import pytest
import torch
from torch.nn import functional as F

from topomask.nn.dropout import Dropout, drop


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.9])
def test_each_number_is_dropped_with_the_probability(p):
    count = 200_000
    out = drop(torch.full((count,), 3.0), p)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 3 / (1 - p)))
    # Six standard deviations: a false alarm in 5e8 runs, and a p that is off by a fifth is found almost surely.
    assert abs(int(kept.sum()) - count * (1 - p)) < 6 * math.sqrt(count * p * (1 - p))


def test_draws_of_neighbours_are_independent():
    kept = (drop(torch.ones(1000, 200), 0.5) != 0).double() - 0.5
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.roll(4, 1)):
        assert abs(float((kept * other).sum())) < 6 * 0.25 * math.sqrt(kept.numel())


def test_gradients_are_those_of_what_was_kept():
    x = torch.randn(50, 4, requires_grad=True)
    out = drop(x, 0.3)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope * x, out)
    with torch.no_grad():
        assert drop(x.mT, 0.3).shape == (4, 50)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_all_precisions(dtype):
    out = drop(torch.ones(1000, dtype=dtype), 0.5)
    assert out.dtype == dtype
    assert set(out.tolist()) == {0.0, 2.0}


def test_the_module_drops_while_it_trains_only():
    module, x = Dropout(0.5), torch.ones(100)
    torch.manual_seed(1)
    first = module(x)
    torch.manual_seed(1)
    assert torch.equal(first, drop(x, 0.5))
    assert 0 < int((first == 0).sum()) < 100
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), 0 * x)
    with pytest.raises(ValueError, match="dropout probability"):
        drop(x, -0.5)
    with pytest.raises(ValueError, match="dropout probability"):
        Dropout(1.5)


def test_compiled_models_have_torch_s_own():
    x = torch.ones(64)
    torch.manual_seed(2)
    out = torch.compile(lambda x: drop(x, 0.5), backend="eager", fullgraph=True)(x)
    torch.manual_seed(2)
    assert torch.equal(out, F.dropout(x, 0.5))
