"""What is particular to dense, low-rank and prefix masks; the laws cover the rest."""

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph
from helpers.mask_cases.walks import walk_mask


def test_dense_parameters_are_learnt_and_tensors_are_kept():
    learnt = tm.DenseMask(torch.nn.Parameter(torch.ones(3, 3)))
    kept = tm.DenseMask(torch.ones(3, 3))
    assert len(list(learnt.parameters())) == 1
    assert len(list(kept.parameters())) == 0
    assert "matrix" in kept.state_dict()
    assert kept.double().to_dense().dtype == torch.float64
    for bad in (torch.ones(3), torch.ones(3, 3, dtype=torch.int64)):
        with pytest.raises(ValueError, match="matrix"):
            tm.DenseMask(bad)


def test_masks_without_a_graph_cannot_be_moved():
    for mask in (tm.DenseMask(torch.ones(3, 3)), tm.LowRankMask(torch.ones(3, 1))):
        with pytest.raises(ValueError, match="does not take a graph"):
            mask.on(tm.path_graph(3))
        with pytest.raises(ValueError, match="Mask does not use walks"):
            mask.on(walks=tm.sample_features(tm.path_graph(3)))
        assert mask.on().num_keys == 3


def test_low_rank_of_one_factor_is_symmetric():
    u = torch.randn(5, 2)
    torch.testing.assert_close(tm.LowRankMask(u).to_dense()[0], u @ u.mT)
    with pytest.raises(ValueError, match="shapes"):
        tm.LowRankMask(u, torch.ones(5, 3))


def test_low_rank_attention_is_the_same_a_few_columns_at_a_time(monkeypatch):
    torch.manual_seed(0)
    u, v = (torch.nn.Parameter(torch.randn(2, 9, 5, dtype=torch.float64)) for _ in range(2))
    mask = tm.LowRankMask(u, v)
    q, k, values = (torch.randn(3, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def attend(strategy):
        out = tm.masked_attention(q, k, values, mask, strategy=strategy)
        return out, torch.autograd.grad(out.square().sum(), [u, v, q])

    whole = attend("product")
    # Two of the five columns at a time.
    monkeypatch.setattr("topomask.masks.low_rank.ELEMENTS_PER_CHUNK", 2 * q.numel())
    for other in (attend("product"), attend("dense")):
        torch.testing.assert_close(other[0], whole[0])
        for ours, theirs in zip(other[1], whole[1], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_half_precision_products_are_taken_in_float32():
    u = torch.full((16, 2), 300.0, dtype=torch.float16)
    for mask in (tm.LowRankMask(u), tm.DenseMask(torch.full((16, 16), 300.0, dtype=torch.float16))):
        assert mask.to_dense().isfinite().all()
        assert (mask @ torch.full((1, 16, 1), 0.01, dtype=torch.float16)).isfinite().all()


def test_a_single_factor_is_stored_once():
    assert set(tm.LowRankMask(torch.ones(3, 1)).state_dict()) == {"u"}


def test_prefix_sees_and_is_seen_by_all():
    inner = walk_mask(ragged_graph(), num_heads=2)
    dense = tm.PrefixMask(inner, num_prefix=3).to_dense()
    assert (dense[:, :3] == 1).all()
    assert (dense[:, :, :3] == 1).all()
    assert torch.equal(dense[:, 3:, 3:], inner.to_dense())


def test_prefix_of_a_batch_stays_in_its_graph():
    mask = tm.PrefixMask(walk_mask(ragged_batch()), num_prefix=2)
    groups = mask.on().key_groups
    assert groups[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    dense = mask.to_dense()[0]
    assert (dense[groups[:, None] != groups] == 0).all()
    assert (dense[:8][groups[:8, None] == groups] == 1).all()


@pytest.mark.parametrize("copies", [1, 2])
def test_prefix_adds_up_half_precision_in_float32(copies):
    """A sum of ones in half precision stops at 2,048."""
    mask = tm.PrefixMask(tm.NeighborMask(tm.Graph.batch([tm.cycle_graph(2999)] * copies)))
    out = mask @ torch.ones(1, 3000 * copies, 1, dtype=torch.float16)
    assert out.dtype == torch.float16
    assert (out[0, :copies] == 3000).all()
    assert (out[0, copies:] == 4).all()


def test_prefix_on_another_graph_shares_parameters():
    mask = tm.PrefixMask(walk_mask(ragged_graph()))
    pattern = mask.on().entries().pattern
    operator = mask.on(tm.grid_graph(3, 3))
    assert operator.num_queries == 10
    assert operator.entries().pattern.shape == (10, 10)
    (gradient,) = torch.autograd.grad(operator.to_dense().sum(), mask.mask.modulation.weight)
    assert gradient.abs().sum() > 0
    assert all(a is b for a, b in zip(mask.on().entries().pattern, pattern, strict=True)), "found once"
    mask.graph = tm.grid_graph(3, 3)
    assert mask.mask.graph is mask.graph
    assert torch.equal(mask.to_dense(), operator.to_dense())
    walks = mask.sample(ragged_graph())
    assert torch.equal(mask.on(ragged_graph(), walks).to_dense(), tm.PrefixMask(walk_mask(ragged_graph())).to_dense())
    assert tm.PrefixMask(tm.NeighborMask()).on(ragged_graph()).num_queries == 12
    assert tm.PrefixMask(tm.NeighborMask()).sample(ragged_graph()) is None


def test_prefix_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="num_prefix"):
        tm.PrefixMask(walk_mask(ragged_graph()), num_prefix=0)
    with pytest.raises(ValueError, match="square"):
        tm.PrefixMask(tm.DenseMask(torch.ones(2, 3))).on()
    operator = tm.DenseMask(torch.ones(3, 3)).on()
    for bad in (operator, operator.select(torch.tensor([2, 1, 0]), None)):
        with pytest.raises(ValueError, match=r"is an operator, a mask on one graph\. Combine the masks"):
            tm.PrefixMask(bad)


def test_dense_weights_are_kept_until_something_changes():
    """By any mask, and its magnitude; a change of parameters, precision or walks is seen through a prefix too."""
    walks = tm.WalkMask(tm.cycle_graph(6), f=torch.tensor([1.0, -0.5]), max_length=1, seed=0)
    for mask in (walks, tm.PrefixMask(walks)):
        with torch.no_grad():
            kept, size = mask.on()._dense_weights(), mask.magnitude()._dense_weights()
            assert mask.on()._dense_weights() is kept
            assert mask.magnitude()._dense_weights() is size
            walks.modulation.weight.mul_(2.0)
            assert not torch.equal(mask.on()._dense_weights(), kept)
            torch.testing.assert_close(mask.on()._dense_weights(), mask.to_dense())
            walks.resample(walks.seed + 1)
            torch.testing.assert_close(mask.on()._dense_weights(), mask.to_dense())
            walks.double()
            assert mask.on()._dense_weights().dtype == torch.float64
            walks.float()
        assert mask.on()._dense_weights().requires_grad


def test_the_magnitude_of_a_learnt_matrix_is_learnt_behind_a_prefix():
    mask = tm.PrefixMask(tm.DenseMask(torch.nn.Parameter(-torch.ones(3, 3))))
    assert mask.magnitude()._dense_weights().requires_grad
    with torch.no_grad():
        assert mask.magnitude()._dense_weights()[0, 1, 1] == 1
        mask.mask.matrix.mul_(2.0)
        assert mask.magnitude()._dense_weights()[0, 1, 1] == 2
