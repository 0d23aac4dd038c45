"""What is particular to Kronecker products of masks; the laws cover the rest."""

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph
from helpers.mask_cases.walks import walk_mask
from helpers.noisy import NoisyMask
from topomask.masks.dense import DenseOperator
from topomask.masks.kronecker import KroneckerOperator


def dense_mask(*shape: int, seed: int = 0) -> tm.DenseMask:
    generator = torch.Generator().manual_seed(seed)
    return tm.DenseMask(torch.randn(shape, generator=generator, dtype=torch.float64))


def test_tokens_are_numbered_as_in_a_grid():
    """The exponential of the adjacency of a grid is the Kronecker product of those of its sides."""
    exponential = torch.tensor([1.0 / scipy.special.factorial(k) for k in range(25)], dtype=torch.float64)
    sides = [tm.PowerSeriesMask(tm.path_graph(size), exponential, normalization="none") for size in (3, 4, 2)]
    whole = scipy.linalg.expm(tm.grid_graph(3, 4, 2).to_scipy().toarray())
    mask = tm.KroneckerMask(sides[0], tm.KroneckerMask(sides[1], sides[2]))
    np.testing.assert_allclose(mask.to_dense()[0].detach().numpy(), whole, rtol=1e-9)
    x = torch.randn(2, 1, 24, 3, dtype=torch.float64)
    torch.testing.assert_close(mask @ x, torch.from_numpy(whole) @ x)


def test_agrees_with_numpy_head_by_head():
    first, second = dense_mask(2, 3, 4), dense_mask(1, 5, 2, seed=1)
    mask = tm.KroneckerMask(first, second)
    assert (mask.num_heads, mask.on().num_queries, mask.on().num_keys) == (2, 15, 8)
    for head in range(2):
        expected = np.kron(first.to_dense()[head], second.to_dense()[0])
        np.testing.assert_allclose(mask.to_dense()[head], expected)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ((dense_mask(2, 3, 3), dense_mask(3, 3, 3)), r"must have 1 or 3 heads, but have \[2, 3\]"),
        ((dense_mask(3, 3), torch.ones(3, 3)), "`second` must be a mask, but is a Tensor"),
        ((dense_mask(3, 3), dense_mask(3, 3).on()), "`second` must be a mask, but is an operator.*Combine the masks"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(factors, message):
    with pytest.raises(ValueError, match=message):
        tm.KroneckerMask(*factors)


class CountingOperator(DenseOperator):
    """A matrix that counts the columns it is multiplied with."""

    columns = 0

    def matmul(self, x):
        self.columns += x.shape[-1]
        return super().matmul(x)

    def rmatmul(self, x):
        self.columns += x.shape[-1]
        return super().rmatmul(x)


def test_the_cheaper_order_is_taken():
    """A factor that shrinks its axis comes first, in both directions: 2 columns each, where there could be 30."""
    for shapes in (((2, 30), (30, 2)), ((30, 2), (2, 30))):
        masks = [tm.DenseMask(torch.randn(shape)) for shape in shapes]
        first, second = (CountingOperator(mask, mask.matrix) for mask in masks)
        operator = KroneckerOperator(first, second)
        assert operator.cost().product == 2 * 60 + 2 * 60
        assert operator.cost().inner_rows == 60
        for multiply in (operator.matmul, operator.rmatmul):
            first.columns = second.columns = 0
            multiply(torch.randn(1, 60, 1))
            assert (first.columns, second.columns) == (2, 2)


def test_nothing_of_the_size_of_the_whole_mask_is_formed():
    """131,072 tokens, whose mask would have 17 billion entries, with a gradient."""
    time = tm.PowerSeriesMask(tm.path_graph(32), tm.series.heat(4))
    mask = tm.KroneckerMask(time, tm.LowRankMask(nn.Parameter(torch.rand(4096, 2))))
    x = torch.randn(1, 32 * 4096, 1, requires_grad=True)
    (mask @ x).sum().backward()
    assert x.grad.isfinite().all()
    plan = tm.plan_attention(mask, 8, 8)
    assert plan.strategy == "product"
    with pytest.raises(ValueError, match="Only dense attention"):
        tm.plan_attention(mask, 8, 8, kernel="softmax")


def test_plans_of_sparse_factors():
    video = tm.KroneckerMask(
        tm.WalkMask(tm.path_graph(16), num_walks=4, max_length=2, symmetric=False, seed=0),
        tm.WalkMask(tm.grid_graph(24, 24), num_walks=4, max_length=2, symmetric=False, seed=0),
    )
    for kernel in ("linear", "softmax"):
        assert tm.plan_attention(video, 64, 64, kernel=kernel).strategy == "pairs"
    cost = video.on().cost()
    assert len(video.on().entries().pattern.columns) == cost.max_pairs == cost.pairs
    small = tm.KroneckerMask(walk_mask(tm.path_graph(2)), walk_mask(tm.path_graph(3)))
    assert tm.plan_attention(small, 64, 64).strategy == "dense"


def test_a_small_factor_that_is_not_sparse_is_written_out():
    """Softmax attention on a film of 16 frames under an exact mask in time and walks in space."""
    time = tm.PowerSeriesMask(tm.path_graph(16), tm.series.heat(4))
    space = tm.WalkMask(tm.grid_graph(24, 24), num_walks=4, max_length=2, symmetric=False, seed=0)
    film = tm.KroneckerMask(time, space)
    pairs = len(film.on().entries().pattern.columns)
    assert film.on().cost().max_pairs == 16 * 16 * space.on().cost().max_pairs == pairs
    assert tm.plan_attention(film, 64, 64, kernel="softmax").strategy == "pairs"
    long = tm.KroneckerMask(tm.PowerSeriesMask(tm.path_graph(300), tm.series.heat(4)), space)
    assert long.on().cost().max_pairs is None, "a full mask of 300 x 300 is not small"
    assert tm.KroneckerMask(time, time).on().cost().max_pairs is None, "nothing here is sparse"


def test_entries_of_several_heads_are_bounded_closely():
    """Only entries of the same head meet: the product of the bounds over all heads is not the last word."""
    heads = 8
    time = walk_mask(tm.path_graph(3), num_heads=heads, symmetric=False)
    space = walk_mask(tm.path_graph(40), num_heads=heads, symmetric=False)
    operator = tm.KroneckerMask(time, space).on()
    found = operator.entries().values.numel()
    assert found <= operator.cost().max_pairs <= 2 * found
    assert abs(operator.cost().pairs - found) < 0.1 * found


def test_tile_work_is_about_that_of_the_pattern():
    from topomask.ops.pair_attention import estimate_tiles

    time = tm.WalkMask(tm.path_graph(6), num_walks=8, max_length=4, symmetric=False, seed=0)
    mask = tm.KroneckerMask(
        time, tm.WalkMask(tm.grid_graph(16, 16), num_walks=20, max_length=6, symmetric=False, seed=0)
    )
    guessed, found = mask.on().cost().tiles, estimate_tiles(mask.on().entries().pattern, None)
    assert guessed is not None
    assert found is not None
    cost = [work.keys + 2.5 * work.alone for work in (guessed, found)]
    assert 0.5 < cost[0] / cost[1] < 2, (guessed, found)


def test_the_pattern_is_computed_once_until_walks_change():
    time, space = (walk_mask(graph, symmetric=False) for graph in (tm.path_graph(3), ragged_graph()))
    mask = tm.KroneckerMask(time, space)
    pattern = mask.on().entries().pattern
    assert mask.on().entries().pattern.columns is pattern.columns
    q, k, v = torch.randn(3, 1, 1, 33, 4, dtype=torch.float64)
    with torch.no_grad():
        for change in (lambda: space.resample(8), lambda: time.modulation.weight.mul_(-2.0)):
            assert mask.on().entries() is mask.on().entries()
            change()
            dense = tm.masked_softmax_attention(q, k, v, mask, strategy="dense")
            torch.testing.assert_close(tm.masked_softmax_attention(q, k, v, mask, strategy="pairs"), dense)
    assert mask.on().entries().pattern.columns is not pattern.columns


def test_a_batch_is_its_graphs_one_by_one():
    space = walk_mask(tm.grid_graph(2, 2), symmetric=False)
    mask = tm.KroneckerMask(walk_mask(tm.path_graph(1), num_heads=2), space)
    films = [tm.path_graph(size) for size in (1, 3, 2)]
    batch = mask.on((tm.Graph.batch(films), None))
    assert batch.num_graphs == 3
    assert batch.key_groups.tolist() == [0] * 4 + [1] * 12 + [2] * 8
    apart = [mask.on((film, None)) for film in films]
    q, k, v = torch.randn(3, 1, 2, 24, 4, dtype=torch.float64)
    parts = [x.split([4, 12, 8], dim=2) for x in (q, k, v)]
    for strategy in ("pairs", "product", "dense"):
        options = {"feature_map": "exp", "strategy": strategy}
        expected = [tm.masked_attention(*one, mask, **options) for *one, mask in zip(*parts, apart, strict=True)]
        torch.testing.assert_close(tm.masked_attention(q, k, v, batch, **options), torch.cat(expected, dim=2))


def test_both_factors_on_batches():
    batch = tm.Graph.batch([tm.path_graph(2), tm.path_graph(1)])
    mask = tm.KroneckerMask(walk_mask(batch), walk_mask(batch))
    assert mask.on().num_graphs == 4
    groups = mask.on().key_groups
    assert groups.tolist() == [0, 0, 1, 0, 0, 1, 2, 2, 3]
    assert (mask.to_dense()[0][groups[:, None] != groups] == 0).all()
    assert (mask.to_dense()[0][groups[:, None] == groups] != 0).all()


def test_factors_move_to_other_graphs():
    mask = tm.KroneckerMask(walk_mask(tm.path_graph(3)), walk_mask(ragged_graph()))
    time, space = tm.path_graph(5), tm.grid_graph(2, 3)
    for graphs in ((time, space), (time, None), (None, space), [time, space], None):
        first, second = (None, None) if graphs is None else graphs
        expected = [part.on(graph).to_dense()[0] for part, graph in ((mask.first, first), (mask.second, second))]
        torch.testing.assert_close(mask.on(graphs).to_dense()[0], torch.kron(*expected))
    walks = mask.sample((time, space))
    torch.testing.assert_close(mask.on((time, space), walks).to_dense(), mask.on((time, space)).to_dense())
    gradients = torch.autograd.grad(mask.on((time, space)).to_dense().sum(), list(mask.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    for wrong in (tm.path_graph(33), (time, space, time), (time,)):
        message = r"product of two graphs.*must be a pair.*mask\.on\(\(first_graph, second_graph\)\)"
        with pytest.raises(ValueError, match=message):
            mask.on(wrong)
    with pytest.raises(ValueError, match=r"product of two graphs"):
        (mask + mask).on(tm.path_graph(33))
    neighbors = tm.KroneckerMask(tm.NeighborMask(), tm.WalkMask(seed=0))
    assert neighbors.on((time, space)).num_keys == 30
    assert neighbors.sample((time, space))[0] is None


@pytest.mark.parametrize("shapes", [((2, 6, 6), (4, 4)), ((3, 7), (6, 2)), ((7, 3), (2, 6))])
@pytest.mark.parametrize("noisy", [(True, False), (False, True), (True, True)])
def test_noise_is_bounded(shapes, noisy):
    """By either factor, whichever is applied first; the bound is not idle."""
    torch.manual_seed(0)
    kinds = [NoisyMask if own else tm.DenseMask for own in noisy]
    mask = tm.KroneckerMask(*(kind(torch.randn(s, dtype=torch.float64)) for kind, s in zip(kinds, shapes, strict=True)))
    x = torch.randn(50, mask.num_heads, mask.on().num_keys, 3, dtype=torch.float64)
    bound = mask.on().product_noise(x)
    assert bound.shape == (50, mask.num_heads, mask.on().num_queries, 3)
    error = (mask @ x - mask.to_dense() @ x).abs()
    assert (error <= bound * (1 + 0.1)).all()
    assert error.max() > 0.2 * bound.min()


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("make", [ragged_graph, ragged_batch])
def test_noise_of_a_graph_in_several_parts(make, swap):
    """There the noise of a factor differs from row to row."""
    factors = [tm.DiffusionMask(make(), time=0.7, num_heads=2), tm.ToeplitzMask(3, num_heads=2)]
    mask = tm.KroneckerMask(*(factors[::-1] if swap else factors))
    num_keys = mask.on().num_keys
    x = torch.randn(4, 2, num_keys, 3)
    error = ((mask @ x).double() - mask.double().to_dense() @ x.double()).abs()
    assert (error <= mask.float().on().product_noise(x)).all()
    q, k, v = torch.randn(3, 1, 2, num_keys, 4)
    ways = [tm.masked_attention(q, k, v, mask, strategy=way) for way in ("product", "dense")]
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-4)


def test_exact_factors_have_no_noise():
    mask = tm.KroneckerMask(dense_mask(3, 3), dense_mask(4, 4))
    assert mask.on().product_noise(torch.randn(1, 12, 2, dtype=torch.float64)) is None


def test_a_query_that_attends_to_nothing_gives_zero_in_spite_of_noise():
    torch.manual_seed(0)
    first, second = torch.rand(3, 3), torch.rand(4, 4)
    first[1] = 0
    second[2] = 0
    mask = tm.KroneckerMask(NoisyMask(first), NoisyMask(second))
    empty = (mask.to_dense()[0] == 0).all(dim=-1)
    assert empty.sum() == 6
    q, k, v = (x.requires_grad_() for x in torch.rand(3, 1, 1, 12, 4).unbind())
    out = tm.masked_attention(q, k, v, mask, strategy="product")
    (gradient,) = torch.autograd.grad(out.sum(), q)
    for found in (out, gradient):
        assert (found[..., empty, :] == 0).all()
        assert (found[..., ~empty, :] != 0).all()


def test_half_precision_stays_finite():
    big = tm.LowRankMask(torch.full((8, 1), 200.0, dtype=torch.float16))
    small = tm.DenseMask(torch.full((8, 8), 1e-6, dtype=torch.float16))
    x = torch.full((1, 64, 1), 0.5, dtype=torch.float16)
    for mask in (tm.KroneckerMask(big, small), tm.KroneckerMask(small, big)):
        assert (mask @ x).dtype == torch.float16
        assert (mask @ x).isfinite().all()


def test_copies_precision_and_state():
    mask = tm.KroneckerMask(walk_mask(tm.path_graph(3)), walk_mask(ragged_graph(), symmetric=False))
    other = copy.deepcopy(mask)
    assert not {id(x) for x in other.parameters()} & {id(x) for x in mask.parameters()}
    torch.testing.assert_close(other.to_dense(), mask.to_dense())
    assert mask.float().on().entries().values.dtype == torch.float32
    assert {name.split(".")[0] for name in mask.state_dict()} == {"first", "second"}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("diffusion_first", [True, False])
def test_large_keys_raise_the_noise_of_their_own_component_only(diffusion_first, nested):
    """Keys of 1e30 in one component, and of 1e-30 in the other: attention by products is that of the dense matrix."""
    apart = tm.Graph.from_edges([[0, 1], [2, 3], [3, 4]], num_nodes=5)
    heat, other = (tm.DiffusionMask(graph).double() for graph in (apart, tm.path_graph(3)))
    if nested:
        other = tm.KroneckerMask(other, tm.DiffusionMask(tm.path_graph(2)).double())
    mask = tm.KroneckerMask(heat, other) if diffusion_first else tm.KroneckerMask(other, heat)
    size = mask.on().num_keys
    token = torch.arange(size)
    node = token // (size // 5) if diffusion_first else token % 5
    q, k, v = (0.1 + torch.rand(1, 1, size, 2, dtype=torch.float64) for _ in range(3))
    k = k * torch.where(node < 2, 1e30, 1e-30).double()[:, None]
    product, dense = (tm.masked_attention(q, k, v, mask, strategy=strategy) for strategy in ("product", "dense"))
    torch.testing.assert_close(product, dense)
    assert (product != 0).all()
