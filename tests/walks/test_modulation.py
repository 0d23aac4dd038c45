import pytest
import torch

from topomask.walks.modulation import Modulation


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_evaluated_in_float32(positive, dtype):
    modulation = Modulation(num_heads=2, max_length=3, positive=positive).to(dtype)
    weight = modulation.weight.float()
    expected = weight.exp() if positive else weight
    assert modulation().dtype == torch.float32
    assert torch.equal(modulation(), expected)
