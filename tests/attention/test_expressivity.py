"""Graphs that the 1-dimensional Weisfeiler-Leman test cannot tell apart.

A correction to the paper: with node features that are themselves 1-WL colours, masks that are power series of W cannot
tell such graphs apart either, since W preserves equitable partitions. With distinct node features, or with a mask of
shortest-path distances, attention can.
"""

import networkx as nx
import pytest
import torch

import topomask as tm


def two_triangles() -> nx.Graph:
    return nx.Graph([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)])


def hexagon() -> nx.Graph:
    return nx.cycle_graph(6)


def decalin() -> nx.Graph:
    """Two six-rings that share an edge."""
    return nx.Graph([*nx.utils.pairwise(range(10), cyclic=True), (0, 5)])


def bicyclopentyl() -> nx.Graph:
    """Two five-rings joined by an edge."""
    first, second = nx.utils.pairwise(range(5), cyclic=True), nx.utils.pairwise(range(5, 10), cyclic=True)
    return nx.Graph([*first, *second, (0, 5)])


PAIRS = {"triangles and hexagon": (two_triangles, hexagon), "decalin and bicyclopentyl": (decalin, bicyclopentyl)}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS.keys())
def graphs(request):
    return tuple(make() for make in request.param)


def topomask_graph(graph: nx.Graph) -> tm.Graph:
    return tm.Graph.from_edges(list(graph.edges), graph.number_of_nodes())


def outputs(mask: tm.Mask, tokens: torch.Tensor, normalizer: str = "absolute") -> torch.Tensor:
    """Attended tokens as a set: sorted, since nodes of the two graphs do not correspond."""
    q, k, v = tokens, tokens.flip(-1), tokens * 2
    out = tm.masked_attention(
        *(x.expand(1, 1, -1, -1) for x in (q, k, v)), mask, feature_map="elu", normalizer=normalizer
    )[0, 0]
    return out.detach().sort(dim=0).values


def masks(graph: nx.Graph) -> dict[str, tm.Mask]:
    built = topomask_graph(graph)
    alpha = 0.7 ** torch.arange(9, dtype=torch.float64)
    f = alpha[:5]
    size = graph.number_of_nodes()
    return {
        "none": tm.DenseMask(torch.ones(size, size, dtype=torch.float64)),
        "power series": tm.PowerSeriesMask(built, alpha),
        "walks": tm.WalkMask(built, num_walks=2000, max_length=4, f=f, seed=0).double(),
        "zeroed diagonal": tm.DenseMask(tm.PowerSeriesMask(built, alpha).to_dense()[0].detach().fill_diagonal_(0.0)),
        "shortest path": tm.ShortestPathMask(built).double(),
    }


def colours(graph: nx.Graph) -> torch.Tensor:
    """The stable 1-WL colours as one-hot tokens."""
    nx.set_node_attributes(graph, "atom", "kind")
    hashes = nx.weisfeiler_lehman_subgraph_hashes(graph, iterations=5, node_attr="kind")
    final = [hashes[node][-1] for node in range(graph.number_of_nodes())]
    names = sorted(set(final))
    return torch.eye(4, dtype=torch.float64)[[names.index(h) for h in final]]


def test_the_pairs_are_indistinguishable_to_1_wl(graphs):
    first, second = graphs
    assert torch.equal(colours(first).sum(0), colours(second).sum(0))
    assert not nx.is_isomorphic(first, second)


def test_distinct_features_separate_with_a_mask_and_not_without(graphs):
    """Node i carries the same feature in both graphs, so only the mask can make a difference."""
    size = graphs[0].number_of_nodes()
    tokens = torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (masks(graph) for graph in graphs)
    torch.testing.assert_close(outputs(first["none"], tokens), outputs(second["none"], tokens), rtol=0, atol=0)
    for name in ("power series", "walks", "shortest path"):
        difference = (outputs(first[name], tokens) - outputs(second[name], tokens)).abs().max()
        assert difference > 1e-3, (name, difference)


def test_colours_do_not_separate_with_a_power_series(graphs):
    """Features that are 1-WL colours: equal outputs to rounding for the exact series, different for other masks."""
    first, second = (masks(graph) for graph in graphs)
    tokens = [colours(graph) for graph in graphs]
    for name in ("none", "power series"):
        difference = (outputs(first[name], tokens[0]) - outputs(second[name], tokens[1])).abs().max()
        assert difference < 1e-13, (name, difference)
    if len(tokens[0].unique(dim=0)) > 1:
        for name in ("zeroed diagonal", "shortest path"):
            difference = (outputs(first[name], tokens[0]) - outputs(second[name], tokens[1])).abs().max()
            assert difference > 1e-3, (name, difference)


def test_constant_features_do_not_separate_with_a_power_series(graphs):
    """A quotient of attention averages equal values, so the sums themselves are compared."""
    first, second = (masks(graph) for graph in graphs)
    tokens = torch.ones(graphs[0].number_of_nodes(), 4, dtype=torch.float64)
    for name, separates in (("none", False), ("power series", False), ("shortest path", True)):
        a, b = (outputs(mask[name], tokens, normalizer="none") for mask in (first, second))
        difference = (a - b).abs().max()
        assert (difference > 1e-3) if separates else (difference < 1e-11), (name, difference)
