"""What a mask of one's own computes once per graph, with `tm.per_graph`."""

import copy
import gc
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph

CALLS: list[weakref.ref] = []


class Found(NamedTuple):
    degrees: torch.Tensor
    parity: torch.Tensor


@tm.per_graph
def found_in(graph):
    """With NumPy, which the compiler cannot trace."""
    CALLS.append(weakref.ref(graph))
    if graph.parts:
        parts = [found_in(part, torch.float64) for part in graph.parts]
        return Found(*map(torch.cat, zip(*parts, strict=True)))
    counts = np.bincount(graph.indices, minlength=graph.num_nodes)
    return Found(torch.from_numpy(np.sqrt(graph.degrees)), torch.from_numpy(counts % 2))


class DegreeProduct(tm.Mask):
    """a d_i d_j between nodes of the same graph."""

    def __init__(self, graph=None, num_heads=1):
        super().__init__(graph, num_heads)
        self.scale = torch.nn.Parameter(torch.ones(num_heads, 1, 1))

    def on(self, graph=None, walks=None):
        return DegreeProductOperator(self, self.graph_or(graph, walks))


class DegreeProductOperator(tm.Operator):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.root = found_in(graph, *mask.kind).degrees[:, None]  # [N, 1]
        self.scale = mask.scale.exp()

    def matmul(self, x):
        root = self.root.to(x.dtype)
        groups = (
            torch.zeros(len(root), dtype=torch.int64, device=x.device) if self.key_groups is None else self.key_groups
        )
        sums = x.new_zeros(*x.shape[:-2], self.num_graphs, x.shape[-1]).index_add(-2, groups, root * x)
        return self.scale.to(x.dtype) * root * sums[..., groups, :]

    def magnitude(self):
        return self


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()


def test_a_function_is_called_once_per_graph_and_precision():
    graph, other = ragged_graph(), tm.path_graph(4)
    first, again = found_in(graph), found_in(graph)
    assert first is again
    assert len(CALLS) == 1
    assert isinstance(first, Found)
    assert (first.degrees.dtype, first.parity.dtype) == (torch.float32, torch.int64)
    assert found_in(graph, torch.float64).degrees.dtype == torch.float64
    assert found_in(graph, torch.float32, "meta").degrees.is_meta
    torch.testing.assert_close(found_in(other).degrees, torch.tensor([1.0, 2.0, 2.0, 1.0]).sqrt())
    assert found_in.__name__ == "found_in"


def test_masks_and_their_copies_share_the_result_and_it_dies_with_the_graph():
    graph = ragged_graph()
    mask = DegreeProduct(graph, num_heads=2)
    copies = [mask, copy.deepcopy(mask), DegreeProduct(graph, num_heads=3)]
    assert len({each.on().root.data_ptr() for each in copies}) == 1
    assert len(CALLS) == 1
    assert mask.double().on().root.dtype == torch.float64
    assert mask.to("meta").to_dense().is_meta
    watched = weakref.ref(graph)
    del graph, mask, copies
    gc.collect()
    assert watched() is None


def test_results_may_be_first_needed_in_inference_mode_and_under_autocast():
    mask = DegreeProduct(ragged_graph())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert mask.to_dense().dtype == torch.float32
    mask.to_dense().sum().backward()
    assert mask.scale.grad is not None


def test_a_batch_reuses_the_results_of_its_graphs():
    graphs = [ragged_graph(), tm.cycle_graph(5)]
    for _ in range(3):
        batch = tm.Graph.batch(graphs)
        expected = torch.block_diag(*(DegreeProduct(graph).double().to_dense()[0] for graph in graphs))
        torch.testing.assert_close(DegreeProduct(batch).double().to_dense()[0], expected)
    assert sum(call() in graphs for call in CALLS) == 2


@pytest.mark.slow
def test_every_law_holds_when_compiled():
    tm.testing.check_mask(DegreeProduct(ragged_graph(), num_heads=2))


def test_a_compiled_layer_takes_the_result_of_the_graph_of_each_call():
    layer = tm.nn.MaskedAttention(8, 2, DegreeProduct(num_heads=2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    graphs = [tm.grid_graph(2, 3), tm.path_graph(6)]
    for graph in [*graphs, *graphs[::-1], tm.path_graph(9)]:
        x = torch.randn(graph.num_nodes, 8)
        torch.testing.assert_close(compiled(x, graph), layer(x, graph))


def test_functions_that_look_alike_do_not_share_results():
    def times(factor):
        return tm.per_graph(lambda graph: factor * torch.tensor(graph.degrees))

    graph = ragged_graph()
    twice, thrice = times(torch.tensor(2.0)), times(torch.tensor(3.0))
    torch.testing.assert_close(1.5 * twice(graph), thrice(graph))


@pytest.mark.parametrize("extra", [(5,), (torch.float32, 5), (None,)])
def test_settings_in_place_of_a_dtype_or_a_device_are_named(extra):
    @tm.per_graph
    def table(graph, size=3):
        return torch.ones(graph.num_nodes, size)

    with pytest.raises(ValueError, match=r"`table` takes a graph, a dtype and a device, .*functools\.partial\(table"):
        table(ragged_graph(), *extra)


def test_a_result_without_tensors_is_named():
    @tm.per_graph
    def degrees(graph):
        return graph.degrees

    with pytest.raises(ValueError, match=r"`degrees` must return a tensor, .* but returned a ndarray. .*torch.tensor"):
        degrees(ragged_graph())
