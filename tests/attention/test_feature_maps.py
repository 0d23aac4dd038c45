import pytest
import torch
from scipy import stats

from topomask.attention import feature_maps
from topomask.nn import SoftmaxFeatures


def test_softmax_features_are_unbiased():
    """E phi(q) . phi(k) = exp(q . k / sqrt(D)); a z-test over 400 seeds that fails by chance once in a million."""
    q, k = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.7
    estimates = torch.stack(
        [(phi(q) * phi(k)).sum(-1) for phi in (SoftmaxFeatures(8, 16, seed=s).double() for s in range(400))]
    )
    truth = torch.exp((q * k).sum(-1) / 8**0.5)
    scores = (estimates.mean(0) - truth) / (estimates.std(0) / 20)
    limit = stats.t.isf(1e-6 / 10, 399)
    assert scores.abs().max() < limit
    # Power: features that forget the scaling by D^(1/4) must fail.
    wrong = torch.exp((q * k).sum(-1))
    assert ((estimates.mean(0) - wrong) / (estimates.std(0) / 20)).abs().max() > limit


def test_projections_are_orthogonal_in_blocks():
    projection = SoftmaxFeatures(6, 15, seed=1).projection
    gram = projection @ projection.mT
    for start in (0, 6, 12):
        block = gram[start : start + 6, start : start + 6]
        off = block - torch.diag(block.diagonal())
        assert off.abs().max() < 1e-4
    assert SoftmaxFeatures(6).projection.shape == (11, 6)


def test_elu_stays_positive_and_differentiable():
    x = torch.tensor([-1e4, -100.0, -1.0, 0.0, 1.0, 1e4], requires_grad=True)
    y = feature_maps.elu(x)
    torch.testing.assert_close(y[2:], torch.nn.functional.elu(x[2:]) + 1)
    assert (feature_maps.elu(torch.tensor([-80.0])) > 0).all()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_names():
    with pytest.raises(ValueError, match="relu"):
        feature_maps.resolve("swish")
    assert feature_maps.resolve(torch.tanh) is torch.tanh
    assert feature_maps.is_nonnegative(feature_maps.relu)
    assert not feature_maps.is_nonnegative(torch.tanh)
    assert feature_maps.is_nonnegative(feature_maps.resolve("exp"))
