"""Graphs and masks that every law is tested on. A new mask is enrolled by one decorated factory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch

import topomask as tm

MaskFactory = Callable[[], tm.Mask]
MASKS: dict[str, MaskFactory] = {}


def enrol(factory: MaskFactory) -> MaskFactory:
    MASKS[factory.__name__] = factory
    return factory


def ragged_graph() -> tm.Graph:
    """Two components, an isolated node, a self-loop, unequal weights."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 3), (5, 6), (6, 7), (7, 8), (8, 5), (6, 8), (9, 10), (3, 9)]
    return tm.Graph.from_edges(edges, num_nodes=11, weights=rng.uniform(0.5, 2.0, len(edges)))


def directed_graph() -> tm.Graph:
    """Unequal weights, a sink and a node without edges."""
    rng = np.random.default_rng(4)
    edges = [(0, 1), (1, 0), (1, 2), (2, 3), (0, 3), (4, 0), (4, 4), (6, 1)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=rng.uniform(0.5, 2.0, len(edges)), directed=True)


def signed_graph() -> tm.Graph:
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (4, 5)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=[1.0, -0.5, 2.0, -1.0, 0.7, -1.0], signed=True)


def star_graph(num_leaves: int) -> tm.Graph:
    leaves = np.arange(1, num_leaves + 1)
    return tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]), num_leaves + 1)


def ragged_batch() -> tm.Graph:
    return tm.Graph.batch([tm.path_graph(1), tm.cycle_graph(5), ragged_graph(), tm.grid_graph(2, 3)])


def random_f(num_heads: int, max_length: int, seed: int = 0) -> torch.Tensor:
    """A modulation with both signs."""
    return torch.randn(num_heads, max_length + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def walk_mask(graph: tm.Graph, num_heads: int = 1, max_length: int = 3, **options) -> tm.WalkMask:
    f = options.pop("f", random_f(num_heads, max_length))
    options = {"num_walks": 6, "seed": 1} | options
    return tm.WalkMask(graph, max_length=max_length, num_heads=num_heads, f=f, **options).double()


@enrol
def walk_symmetric() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2)


@enrol
def walk_symmetric_iid_halting() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2, coupling="iid", halt_prob=0.3)


@enrol
def walk_shared() -> tm.Mask:
    return walk_mask(ragged_graph(), shared_walks=True, coupling="antithetic", halt_prob=0.2)


@enrol
def walk_positive() -> tm.Mask:
    return walk_mask(tm.grid_graph(3, 4), num_heads=3, f=random_f(3, 3).abs() + 0.1, positive=True)


@enrol
def walk_signed_graph() -> tm.Mask:
    return walk_mask(signed_graph(), f=random_f(1, 3).abs() + 0.1, positive=True)


@enrol
def walk_asymmetric() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2, symmetric=False)


@enrol
def walk_directed() -> tm.Mask:
    return walk_mask(directed_graph(), num_heads=2, symmetric=False)


@enrol
def walk_unnormalized() -> tm.Mask:
    return walk_mask(directed_graph(), symmetric=False, normalization="none", max_length=2)


@enrol
def walk_single_node() -> tm.Mask:
    return walk_mask(tm.path_graph(1))


@enrol
def walk_batch() -> tm.Mask:
    return walk_mask(ragged_batch(), num_heads=2)


@enrol
def walk_hub() -> tm.Mask:
    return walk_mask(star_graph(62), max_length=2)


def visit_mask(graph: tm.Graph, num_heads: int = 1, max_length: int = 3, **options) -> tm.VisitMask:
    f = options.pop("f", random_f(num_heads, max_length))
    options = {"num_walks": 6, "seed": 1} | options
    return tm.VisitMask(graph, max_length=max_length, num_heads=num_heads, f=f, **options).double()


@enrol
def visit_shared() -> tm.Mask:
    return visit_mask(ragged_graph(), num_heads=2)


@enrol
def visit_normalized() -> tm.Mask:
    return visit_mask(ragged_batch(), num_heads=2, normalize=True)


@enrol
def visit_own_walks() -> tm.Mask:
    return visit_mask(directed_graph(), shared_walks=False, normalize=True, coupling="iid", halt_prob=0.2)


@enrol
def visit_frequencies() -> tm.Mask:
    return visit_mask(signed_graph(), num_heads=3, f=None)


@enrol
def visit_single_node() -> tm.Mask:
    return visit_mask(tm.path_graph(1))


@enrol
def selected_visit() -> tm.Mask:
    mask = visit_mask(ragged_graph(), num_heads=2, normalize=True)
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def power_series() -> tm.Mask:
    return tm.PowerSeriesMask(ragged_graph(), random_f(2, 4))


@enrol
def power_series_directed() -> tm.Mask:
    return tm.PowerSeriesMask(directed_graph(), random_f(1, 3)[0])


@enrol
def power_series_batch() -> tm.Mask:
    return tm.PowerSeriesMask(ragged_batch(), random_f(2, 3))


@enrol
def power_series_signed() -> tm.Mask:
    return tm.PowerSeriesMask(signed_graph(), random_f(1, 3), normalization="none")


@enrol
def power_series_edge_weights() -> tm.Mask:
    graph = ragged_graph()
    weights = torch.nn.Parameter(graph.to_edge_index()[1] * 1.5)
    return tm.PowerSeriesMask(graph, random_f(1, 3), edge_weights=weights)


@enrol
def power_series_batch_edge_weights() -> tm.Mask:
    graph = ragged_batch()
    weights = torch.nn.Parameter(graph.to_edge_index()[1] * 1.5)
    return tm.PowerSeriesMask(graph, random_f(2, 3), edge_weights=weights)


@enrol
def diffusion_laplacian() -> tm.Mask:
    return tm.DiffusionMask(ragged_graph(), "laplacian", [0.3, 2.0], num_heads=2).double()


@enrol
def diffusion_normalized() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "normalized_laplacian", [0.5, 8.0], num_heads=2).double()


@enrol
def diffusion_adjacency() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "negated_adjacency", 1.2).double()


@enrol
def diffusion_signed() -> tm.Mask:
    return tm.DiffusionMask(signed_graph(), "laplacian", [0.4, 0.9, 1.5], num_heads=3).double()


@enrol
def diffusion_tolerance() -> tm.Mask:
    return tm.DiffusionMask(tm.grid_graph(7, 9), "laplacian", 0.7, tolerance=1e-13).double()


@enrol
def diffusion_single_node() -> tm.Mask:
    return tm.DiffusionMask(tm.path_graph(1), "normalized_laplacian").double()


@enrol
def diffusion_batch() -> tm.Mask:
    """Blocks of several sizes, with negative entries."""
    graph = tm.Graph.batch([signed_graph(), tm.path_graph(1), ragged_graph(), signed_graph()])
    return tm.DiffusionMask(graph, "laplacian", time=[0.3, 1.2], num_heads=2).double()


@enrol
def prefix_diffusion() -> tm.Mask:
    return tm.PrefixMask(tm.DiffusionMask(ragged_graph(), "laplacian", [0.3, 2.0], num_heads=2).double())


@enrol
def selected_diffusion() -> tm.Mask:
    mask = tm.DiffusionMask(signed_graph(), "normalized_laplacian", [0.4, 2.0], num_heads=2).double()
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 5, 6, 6]))


@enrol
def dense() -> tm.Mask:
    return tm.DenseMask(torch.nn.Parameter(torch.randn(2, 9, 9, dtype=torch.float64)))


@enrol
def dense_rectangular() -> tm.Mask:
    return tm.DenseMask(torch.randn(5, 8, dtype=torch.float64))


@enrol
def low_rank() -> tm.Mask:
    u, v = torch.randn(2, 2, 10, 3, dtype=torch.float64)
    return tm.LowRankMask(torch.nn.Parameter(u), torch.nn.Parameter(v))


def position_mask(graph: tm.Graph | int, num_heads: int = 1, **options) -> tm.StochasticPositionMask:
    options = {"num_realizations": 24, "seed": 3} | options
    is_graph = isinstance(graph, tm.Graph)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        mask = tm.StochasticPositionMask(1 if is_graph else graph, num_heads, **options).double()
        for parameter in mask.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mask.on(graph) if is_graph else mask


def sequence_batch() -> tm.Graph:
    """One token, and sequences shorter and longer than a tile."""
    return tm.Graph.batch([tm.path_graph(n) for n in (1, 6, 70, 2)])


@enrol
def position_sine() -> tm.Mask:
    return position_mask(11, num_heads=2, num_sines=2)


@enrol
def position_sine_plain() -> tm.Mask:
    return position_mask(63, gated=False, num_realizations=5)


@enrol
def position_conv() -> tm.Mask:
    return position_mask(13, num_heads=3, kind="conv", kernel_size=4)


@enrol
def position_conv_long() -> tm.Mask:
    return position_mask(2, kind="conv", kernel_size=7, gated=False)


@enrol
def position_exact() -> tm.Mask:
    return position_mask(12, num_heads=2, num_realizations=None, seed=None)


@enrol
def position_single_node() -> tm.Mask:
    return position_mask(1)


@enrol
def position_sine_batch() -> tm.Mask:
    return position_mask(sequence_batch(), num_heads=2, num_sines=1)


@enrol
def position_conv_batch() -> tm.Mask:
    return position_mask(sequence_batch(), num_heads=2, kind="conv", kernel_size=3)


@enrol
def prefix_position() -> tm.Mask:
    return tm.PrefixMask(position_mask(sequence_batch(), num_heads=2))


@enrol
def selected_position() -> tm.Mask:
    return position_mask(11, num_heads=2).select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def learned_features() -> tm.Mask:
    mask = tm.LearnedFeatureMask(9, num_features=3, num_heads=2).double()
    torch.nn.init.normal_(mask.features)
    return mask


@enrol
def learned_features_full() -> tm.Mask:
    return tm.LearnedFeatureMask(7).double()


def degree_mask(graph: tm.Graph, num_heads: int, max_degree: int) -> tm.DegreeMask:
    return tm.DegreeMask(graph, num_heads, max_degree, z=random_f(num_heads, max_degree).sigmoid())


@enrol
def degree() -> tm.Mask:
    return degree_mask(ragged_graph(), num_heads=2, max_degree=5)


@enrol
def degree_directed() -> tm.Mask:
    return degree_mask(directed_graph(), num_heads=1, max_degree=1)


@enrol
def degree_batch() -> tm.Mask:
    return degree_mask(ragged_batch(), num_heads=2, max_degree=3)


@enrol
def degree_single_node() -> tm.Mask:
    return degree_mask(tm.path_graph(1), num_heads=1, max_degree=0)


@enrol
def degree_hub() -> tm.Mask:
    return degree_mask(star_graph(62), num_heads=3, max_degree=8)


def shortest_path_mask(graph: tm.Graph, num_heads: int, max_distance: int, **options) -> tm.ShortestPathMask:
    return tm.ShortestPathMask(graph, num_heads, max_distance, initial=random_f(num_heads, max_distance), **options)


@enrol
def shortest_path() -> tm.Mask:
    return shortest_path_mask(ragged_graph(), num_heads=2, max_distance=3)


@enrol
def shortest_path_unreachable() -> tm.Mask:
    return shortest_path_mask(ragged_graph(), num_heads=2, max_distance=2, unreachable=-0.3)


@enrol
def shortest_path_bias() -> tm.Mask:
    return shortest_path_mask(directed_graph(), num_heads=2, max_distance=3, bias=True)


@enrol
def shortest_path_lengths() -> tm.Mask:
    initial = random_f(1, 3)
    return tm.ShortestPathMask(directed_graph(), boundaries=[0.0, 1.0, 2.5], initial=initial, unreachable=0.7)


@enrol
def shortest_path_single_node() -> tm.Mask:
    return shortest_path_mask(tm.path_graph(1), num_heads=1, max_distance=0)


@enrol
def shortest_path_batch() -> tm.Mask:
    return shortest_path_mask(ragged_batch(), num_heads=2, max_distance=3)


@enrol
def shortest_path_batch_bias() -> tm.Mask:
    return shortest_path_mask(ragged_batch(), num_heads=1, max_distance=3, bias=True, unreachable=-1.0)


@enrol
def neighbor() -> tm.Mask:
    return tm.NeighborMask(ragged_graph()).double()


@enrol
def neighbor_directed() -> tm.Mask:
    return tm.NeighborMask(directed_graph()).double()


@enrol
def neighbor_signed() -> tm.Mask:
    return tm.NeighborMask(signed_graph(), weighted=True).double()


@enrol
def neighbor_without_self_loops() -> tm.Mask:
    return tm.NeighborMask(ragged_graph(), weighted=True, self_loops=False).double()


@enrol
def neighbor_batch() -> tm.Mask:
    return tm.NeighborMask(ragged_batch()).double()


@enrol
def neighbor_dense() -> tm.Mask:
    """Enough neighbours for tiles."""
    return tm.NeighborMask(tm.Graph.from_scipy(sp.csr_array(np.ones((63, 63))))).double()


@enrol
def same_graph() -> tm.Mask:
    return tm.SameGraphMask(ragged_graph()).double()


@enrol
def same_graph_batch() -> tm.Mask:
    return tm.SameGraphMask(ragged_batch()).double()


@enrol
def prefix_neighbor() -> tm.Mask:
    return tm.PrefixMask(tm.NeighborMask(ragged_batch())).double()


@enrol
def selected_neighbor() -> tm.Mask:
    mask = tm.NeighborMask(signed_graph(), weighted=True).double()
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 0, 0]))


@enrol
def selected_shortest_path() -> tm.Mask:
    mask = shortest_path_mask(ragged_batch(), num_heads=2, max_distance=3)
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 0, 0, 20]))


@enrol
def prefix_walk() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2), num_prefix=2)


@enrol
def prefix_batch() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_batch(), num_heads=2, symmetric=False), num_prefix=2)


@enrol
def prefix_power_series() -> tm.Mask:
    return tm.PrefixMask(tm.PowerSeriesMask(ragged_graph(), random_f(1, 2)))


@enrol
def selected_walk() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2).select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def selected_asymmetric() -> tm.Mask:
    # One node holds two keys.
    mask = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    return mask.select(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 0, 0, 1, 2, 4]))


@enrol
def selected_prefix() -> tm.Mask:
    mask = tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2))
    return mask.select(torch.tensor([0, 4, 5]), None)


def toeplitz_mask(shape, num_heads: int = 1, **options) -> tm.ToeplitzMask:
    """With entries of both signs, or of both sizes."""
    mask = tm.ToeplitzMask(shape, num_heads, **options).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return mask


@enrol
def toeplitz_sequence() -> tm.Mask:
    return toeplitz_mask(9, num_heads=2)


@enrol
def toeplitz_positive() -> tm.Mask:
    return toeplitz_mask(7, num_heads=2, positive=True)


@enrol
def toeplitz_causal() -> tm.Mask:
    return toeplitz_mask(10, num_heads=2, causal=True)


@enrol
def toeplitz_causal_positive() -> tm.Mask:
    return toeplitz_mask(6, causal=True, positive=True)


@enrol
def toeplitz_causal_table() -> tm.Mask:
    return toeplitz_mask(6, num_heads=2, causal=True, distance="l1")


@enrol
def toeplitz_grid() -> tm.Mask:
    return toeplitz_mask((3, 4), num_heads=2)


@enrol
def toeplitz_grid_positive() -> tm.Mask:
    return toeplitz_mask((4, 2), positive=True)


@enrol
def toeplitz_space() -> tm.Mask:
    return toeplitz_mask((2, 3, 4), num_heads=2)


@enrol
def toeplitz_single_node() -> tm.Mask:
    return toeplitz_mask((1,), num_heads=2)


@enrol
def toeplitz_row() -> tm.Mask:
    return toeplitz_mask((1, 5))


@enrol
def toeplitz_column() -> tm.Mask:
    return toeplitz_mask((5, 1, 2))


@enrol
def toeplitz_table() -> tm.Mask:
    return toeplitz_mask((4, 3), num_heads=2, distance="l2")


@enrol
def toeplitz_table_positive() -> tm.Mask:
    return toeplitz_mask((2, 2, 3), distance="linf", positive=True)


@enrol
def toeplitz_decay() -> tm.Mask:
    return toeplitz_mask((3, 3), num_heads=2, distance="l1", f=tm.ExponentialDecay(2))


@enrol
def toeplitz_perceptron() -> tm.Mask:
    f = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return toeplitz_mask((3, 4), num_heads=2, distance="l2", f=f)


@enrol
def hypercube() -> tm.Mask:
    # Two factors.
    return tm.HypercubeMask(6, num_heads=2, rate=torch.tensor([0.3, 1.0], dtype=torch.float64))


@enrol
def hypercube_small() -> tm.Mask:
    return tm.HypercubeMask(3, rate=torch.tensor(0.7, dtype=torch.float64))


@enrol
def hypercube_single_node() -> tm.Mask:
    return tm.HypercubeMask(0, num_heads=2).double()


@enrol
def prefix_toeplitz() -> tm.Mask:
    return tm.PrefixMask(toeplitz_mask((3, 3), num_heads=2), num_prefix=2)


@enrol
def selected_toeplitz() -> tm.Mask:
    return toeplitz_mask((3, 4), num_heads=2).select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 11, 8, 9]))


@enrol
def sum_learnt() -> tm.Mask:
    weights = torch.nn.Parameter(torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=torch.float64))
    parts = [walk_mask(ragged_graph(), num_heads=2), walk_mask(ragged_graph(), symmetric=False, seed=5)]
    return tm.SumMask(parts, weights)


@enrol
def sum_positive() -> tm.Mask:
    f = random_f(2, 3).abs() + 0.1
    parts = [walk_mask(ragged_graph(), 2, f=f, positive=True, seed=seed) for seed in (1, 2)]
    return tm.SumMask(parts).double()


@enrol
def sum_of_unlike_masks() -> tm.Mask:
    """A mask of two heads on a graph, a dense parameter of one head, and thin factors, with weights of every kind."""
    learnt = torch.nn.Parameter(torch.tensor([-0.7, 1.5], dtype=torch.float64))
    fixed = torch.tensor([0.5, -2.0], dtype=torch.float64)
    matrix = torch.nn.Parameter(torch.randn(11, 11, dtype=torch.float64))
    thin = tm.LowRankMask(torch.randn(2, 11, 2, dtype=torch.float64))
    return learnt * tm.PowerSeriesMask(ragged_graph(), random_f(2, 3)) + fixed * tm.DenseMask(matrix) - thin


@enrol
def sum_heads_of_weights() -> tm.Mask:
    """One head each, two heads by the weights alone."""
    weights = torch.nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
    return weights * walk_mask(ragged_graph(), symmetric=False)


@enrol
def sum_nested() -> tm.Mask:
    inner = tm.SumMask([walk_mask(ragged_graph()), walk_mask(ragged_graph(), seed=9)]).double()
    outer = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    return tm.SumMask([inner, -inner, walk_mask(ragged_graph(), symmetric=False)], [outer, 0.25, 1.0])


@enrol
def sum_batch() -> tm.Mask:
    return walk_mask(ragged_batch(), num_heads=2) - 0.5 * walk_mask(ragged_batch(), symmetric=False, seed=3)


@enrol
def sum_behind_prefix() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_graph()) + walk_mask(ragged_graph(), symmetric=False), num_prefix=2)


@enrol
def selected_sum() -> tm.Mask:
    mask = walk_mask(ragged_graph(), num_heads=2) - walk_mask(ragged_graph(), symmetric=False)
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def kronecker_walks() -> tm.Mask:
    first = walk_mask(tm.path_graph(3), num_heads=2, symmetric=False)
    return tm.KroneckerMask(first, walk_mask(signed_graph(), num_heads=2, symmetric=False))


@enrol
def kronecker_positive() -> tm.Mask:
    f = random_f(2, 3).abs() + 0.1
    first = walk_mask(tm.path_graph(2), 1, f=f[0], positive=True)
    return tm.KroneckerMask(first, walk_mask(ragged_graph(), 2, f=f, positive=True))


@enrol
def kronecker_series() -> tm.Mask:
    first = tm.PowerSeriesMask(tm.cycle_graph(3), random_f(2, 2))
    return tm.KroneckerMask(first, tm.PowerSeriesMask(directed_graph(), random_f(1, 2, seed=1)))


@enrol
def kronecker_rectangular() -> tm.Mask:
    first = tm.DenseMask(torch.nn.Parameter(torch.randn(2, 2, 5, dtype=torch.float64)))
    return tm.KroneckerMask(first, tm.LowRankMask(*torch.randn(2, 3, 2, dtype=torch.float64)))


@enrol
def kronecker_tall() -> tm.Mask:
    first = tm.LowRankMask(torch.randn(4, 2, dtype=torch.float64))
    second = tm.DenseMask(torch.nn.Parameter(torch.randn(3, 5, 2, dtype=torch.float64)))
    return tm.KroneckerMask(first, second)


@enrol
def kronecker_of_three() -> tm.Mask:
    line = walk_mask(tm.path_graph(2), num_heads=2, symmetric=False)
    plane = tm.KroneckerMask(walk_mask(tm.cycle_graph(3), symmetric=False), walk_mask(tm.path_graph(2)))
    return tm.KroneckerMask(line, plane)


@enrol
def kronecker_batch() -> tm.Mask:
    """Films of one, two and three frames."""
    frames = tm.Graph.batch([tm.path_graph(size) for size in (1, 2, 3)])
    return tm.KroneckerMask(walk_mask(frames, num_heads=2), walk_mask(tm.grid_graph(2, 2), symmetric=False))


@enrol
def kronecker_of_small_and_sparse() -> tm.Mask:
    frames = tm.PowerSeriesMask(tm.path_graph(3), random_f(2, 2))
    return tm.KroneckerMask(frames, walk_mask(ragged_graph(), symmetric=False))


@enrol
def kronecker_of_sparse_and_small() -> tm.Mask:
    matrix = torch.nn.Parameter(torch.randn(2, 3, 4, dtype=torch.float64))
    return tm.KroneckerMask(walk_mask(directed_graph(), num_heads=2, symmetric=False), tm.DenseMask(matrix))


@enrol
def kronecker_single_node() -> tm.Mask:
    return tm.KroneckerMask(walk_mask(tm.path_graph(1)), walk_mask(tm.path_graph(1)))


@enrol
def selected_kronecker() -> tm.Mask:
    mask = tm.KroneckerMask(walk_mask(tm.path_graph(3)), walk_mask(ragged_graph(), symmetric=False))
    return mask.select(torch.tensor([32, 0, 5]), torch.tensor([1, 12, 12, 30]))


@enrol
def sum_of_kronecker() -> tm.Mask:
    space, time = walk_mask(tm.grid_graph(2, 2), symmetric=False), walk_mask(tm.path_graph(3), symmetric=False)
    whole = walk_mask(tm.grid_graph(3, 2, 2), num_heads=2, symmetric=False)
    return tm.KroneckerMask(time, space) - 0.5 * whole


def small_forest(weights: object = None) -> tm.Graph:
    """A tree of eight nodes, a path of three and a node of its own, numbered at random."""
    edges = np.array([(0, 1), (0, 2), (2, 3), (2, 4), (4, 5), (2, 6), (6, 7), (8, 9), (9, 10)])
    return tm.Graph.from_edges(np.random.default_rng(5).permutation(12)[edges], 12, weights=weights)


def forest_mask(graph: tm.Graph, num_heads: int = 2, **options) -> tm.Mask:
    mask = tm.ForestMask(graph, num_heads, **options).double()
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return mask


@enrol
def forest_exponential() -> tm.Mask:
    return forest_mask(small_forest())


@enrol
def forest_weighted() -> tm.Mask:
    return forest_mask(small_forest(np.random.default_rng(1).uniform(0.1, 2.0, 9)), weighted=True)


@enrol
def forest_growing() -> tm.Mask:
    return forest_mask(small_forest(), 1, rate=-0.3, growing=True)


@enrol
def forest_sum_of_exponentials() -> tm.Mask:
    return forest_mask(small_forest(), num_terms=3)


@enrol
def forest_table() -> tm.Mask:
    return forest_mask(small_forest(), table=random_f(2, 5))


@enrol
def forest_short_table() -> tm.Mask:
    return forest_mask(small_forest(), table=random_f(2, 1))


@enrol
def forest_whole_lengths() -> tm.Mask:
    return forest_mask(small_forest(np.arange(1, 10)), table=random_f(2, 20), weighted=True)


@enrol
def forest_batch() -> tm.Mask:
    return forest_mask(tm.Graph.batch([tm.path_graph(1), small_forest(), tm.path_graph(6)]), table=random_f(2, 4))
