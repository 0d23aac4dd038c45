import pytest
import torch
from torch.nn import functional as F

from topomask.nn import PatchEmbedding


@pytest.mark.parametrize(
    ("patch_shape", "sizes"), [((4, 4), (8, 12)), ((2, 3), (4, 3)), ((2, 4, 2), (4, 8, 6)), ((1, 1), (3, 5))]
)
def test_equals_a_convolution_with_a_stride(patch_shape, sizes):
    torch.manual_seed(0)
    layer = PatchEmbedding(3, 5, patch_shape).double()
    x = torch.randn(2, 3, *sizes, dtype=torch.float64)
    convolve = {2: F.conv2d, 3: F.conv3d}[len(sizes)]
    weight = layer.projection.weight.view(5, 3, *patch_shape)
    expected = convolve(x, weight, layer.projection.bias, stride=patch_shape)
    torch.testing.assert_close(layer(x), expected.movedim(1, -1))


@pytest.mark.parametrize("shape", [(2, 3, 8, 10), (2, 1, 8, 8), (3, 8, 8), (2, 3, 8, 8, 8)])
def test_wrong_shapes_are_named(shape):
    with pytest.raises(ValueError, match=r"`x` must have shape \[B, 3, \*sizes\]"):
        PatchEmbedding(3, 5, (4, 4))(torch.randn(shape))
