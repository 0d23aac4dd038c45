import pytest
import torch

import topomask as tm


def test_is_the_product_of_its_features():
    mask = tm.LearnedFeatureMask(6, num_features=3, num_heads=2).double()
    torch.nn.init.normal_(mask.features)
    other = tm.LowRankMask(mask.features)
    torch.testing.assert_close(mask.to_dense(), other.to_dense())
    torch.testing.assert_close(mask.magnitude().to_dense(), other.magnitude().to_dense())
    assert mask.on().cost().dense == 2 * 6 * 6 * 3


def test_starts_almost_as_if_there_were_no_mask():
    """Off the diagonal an entry is 1 plus noise of deviation 0.1 sqrt(2 / r) and smaller; 6 of these are allowed."""
    torch.manual_seed(0)
    mask = tm.LearnedFeatureMask(200, num_heads=3)
    assert mask.features.shape == (3, 200, 200)
    dense = mask.to_dense().detach()
    assert (dense - 1).abs().max() < 0.06 + 0.01
    assert torch.equal(dense, dense.mT)
    features = mask.features.detach() * 200**0.5
    assert features.std() == pytest.approx(0.1, rel=0.05), "features differ, so they can learn different things"


def test_every_entry_of_a_small_symmetric_mask_can_be_learnt():
    """With N features any positive semidefinite mask is within reach, the graph's heat kernel for one."""
    torch.manual_seed(0)
    target = tm.PowerSeriesMask(tm.cycle_graph(6), tm.series.heat(8)).to_dense().detach().double()
    mask = tm.LearnedFeatureMask(6).double()
    optimizer = torch.optim.LBFGS(mask.parameters(), max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (mask.to_dense() - target).square().sum()
        value.backward()
        return value

    assert loss() > 1
    optimizer.step(loss)
    assert loss() < 1e-8


def test_half_precision_products_are_taken_in_float32():
    mask = tm.LearnedFeatureMask(64, num_features=2).half()
    with torch.no_grad():
        mask.features.fill_(300.0)
    assert mask.to_dense().isfinite().all()
    x = torch.full((1, 64, 1), 0.001, dtype=torch.float16)
    assert (mask @ x).dtype == torch.float16
    assert (mask @ x).isfinite().all()


def test_bad_arguments_are_named_and_there_is_no_graph_to_leave():
    for options, match in (
        ({"num_nodes": 0}, "num_nodes"),
        ({"num_nodes": 3, "num_features": 0}, "num_features"),
        ({"num_nodes": 3, "num_heads": True}, "num_heads"),
    ):
        with pytest.raises(ValueError, match=match):
            tm.LearnedFeatureMask(**options)
    with pytest.raises(ValueError, match="does not take a graph"):
        tm.LearnedFeatureMask(3).on(tm.path_graph(3))
