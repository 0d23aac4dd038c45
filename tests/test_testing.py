"""The laws that users try their own masks on: they hold for the library's masks, and fail where something is wrong."""

import re

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases import MASKS


class PageRankMask(tm.Mask):
    """A mask as a user writes it: the example of `tm.Mask`."""

    def __init__(self, graph=None, num_heads=1, kind=None):
        super().__init__(graph, num_heads)
        self.logit = torch.nn.Parameter(torch.zeros(num_heads))
        self.operator_kind = PageRank if kind is None else kind

    def on(self, graph=None, walks=None):
        return self.operator_kind(self, self.graph_or(graph, walks))


class PageRank(tm.Operator):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.stay, self.step = mask.logit.sigmoid()[:, None, None], graph.matrix("row", *mask.kind)

    def matmul(self, x):
        out = x
        for _ in range(6):
            out = self.stay * x + (1 - self.stay) * self.step.multiply(out)
        return out

    def magnitude(self):
        return self


class Untransposed(PageRank):
    def rmatmul(self, x):
        return self.matmul(x)


class SmallMagnitude(PageRank):
    def magnitude(self):
        other = self._copy()
        other.stay = 0.5 * self.stay
        return other


class WrongDense(PageRank):
    def to_dense(self):
        return 1.01 * super().to_dense()


class SeesAllGraphs(PageRank):
    def matmul(self, x):
        return super().matmul(x) + x.sum(dim=-2, keepdim=True)


class Detached(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.stay = self.stay.detach()


class HalfGradient(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.stay = 0.5 * self.stay + 0.5 * self.stay.detach()


WRONG = {
    Untransposed: "The adjoint",
    SmallMagnitude: "must dominate",
    WrongDense: "The product",
    SeesAllGraphs: "batch of two equal graphs",
    Detached: "depends on the parameter 'logit'",
    HalfGradient: "Jacobian mismatch",
}


@pytest.mark.parametrize("compile", [False, True])
def test_a_mask_of_ones_own_passes(compile):
    tm.testing.check_mask(PageRankMask(ragged_graph(), num_heads=2), compile=compile)
    tm.testing.check_mask(PageRankMask(num_heads=2), ragged_graph(), compile=False)


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named(kind):
    graph = ragged_graph()
    # Wrong gradients are named by torch's own check.
    with pytest.raises((AssertionError, RuntimeError), match=WRONG[kind]):
        tm.testing.check_mask(PageRankMask(graph, num_heads=2, kind=kind), compile=False)


class FromNumpy(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.matrix = torch.from_numpy(graph.adjacency("row").toarray()) * self.stay

    def matmul(self, x):
        return self.matrix.to(x.dtype) @ x


class WithNumpy(PageRank):
    def matmul(self, x):
        return self.stay * torch.from_numpy(np.tril(np.ones((x.shape[-2],) * 2)) @ x.numpy())


class OfParameters(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.stay = torch.from_numpy(mask.logit.numpy())


class InFloat32(PageRank):
    def matmul(self, x):
        return torch.eye(x.shape[-2]) @ (self.stay * x)


class NoOperator:
    def __init__(self, mask, graph):
        pass


# The law that fails, and how.
RAISES = {
    FromNumpy: r'compiled attention gives the same .*test_testing.py", line \d+: ',
    WithNumpy: r"<M x, y> = <x, M\^T y>.* RuntimeError: Can't call numpy",
    OfParameters: r"``on\(\)`` returns an operator.* RuntimeError: Can't call numpy",
    InFloat32: r"the product agrees with the dense matrix.* RuntimeError: expected .*scalar type",
}


@pytest.mark.parametrize("kind", RAISES)
def test_an_error_in_the_code_of_a_mask_names_the_law_and_the_fix(kind):
    fix = r".*x in float32 or float64.*tensor\.to\(x\.dtype\).*@tm\.per_graph"
    with pytest.raises(AssertionError, match=rf"^Check that {RAISES[kind]}") as caught:
        tm.testing.check_mask(PageRankMask(ragged_graph(), num_heads=2, kind=kind), compile=kind is FromNumpy)
    assert re.search(fix, text := str(caught.value).replace("[..., H, N, C] ", ""))
    assert "\n" not in text
    # The place in the user's code is in the trace, but for the compiler, whose trace is hundreds of lines long.
    assert (caught.value.__cause__ is None) == (kind is FromNumpy)


def test_a_mask_without_an_operator_or_a_graph_is_named():
    with pytest.raises(AssertionError, match=r"must return a tm\.Operator, but returned a NoOperator"):
        tm.testing.check_mask(PageRankMask(ragged_graph(), kind=NoOperator), compile=False)
    with pytest.raises(ValueError, match=r"has no default graph.*call check_mask\(mask, graph\)\.$"):
        tm.testing.check_mask(PageRankMask(), compile=False)


class DetachedInput(PageRank):
    def matmul(self, x):
        return super().matmul(x.detach())


class NumpyInput(PageRank):
    def matmul(self, x):
        return self.stay * torch.from_numpy(2 * x.detach().numpy())


class NotLinear(PageRank):
    def matmul(self, x):
        return super().matmul(x).relu()


class Biased(PageRank):
    def matmul(self, x):
        return super().matmul(x) + 1


class Random(PageRank):
    def matmul(self, x):
        return super().matmul(x) * torch.rand(())


class RandomOn(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.stay = self.stay * torch.rand(())


LAWS = {
    DetachedInput: r"not differentiable in x: is there \.detach\(\), \.numpy\(\) or no_grad in it",
    NumpyInput: "not differentiable in x",
    NotLinear: "matmul is not linear in x",
    Biased: "matmul adds a constant",
    Random: "matmul is random",
    RandomOn: r"on\(\) is random",
}


@pytest.mark.parametrize("kind", LAWS)
def test_a_product_that_is_not_one_with_a_matrix_is_named(kind):
    with pytest.raises(AssertionError, match=LAWS[kind]):
        tm.testing.check_mask(PageRankMask(ragged_graph(), num_heads=2, kind=kind), compile=False)


class NoMagnitude(tm.Operator):
    def matmul(self, x):
        return x


class NoInit(PageRank):
    def __init__(self, mask, _):
        self.stay = mask.logit.sigmoid()


class NoPositions(PageRank):
    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        self.positions = {}[graph]


class OnWithoutDefaults(PageRankMask):
    def on(self, graph):
        return PageRank(self, graph)


class OnWithoutReturn(PageRankMask):
    def on(self, graph=None, walks=None):
        PageRank(self, self.graph_or(graph, walks))


class OnOneGraph(PageRankMask):
    def on(self, _=None, walks=None):
        return PageRank(self, self.graph_or(None, walks))


ON = r"Write on\(self, graph=None, walks=None\) and return an operator\.$"
UNRELATED = {
    "no magnitude": (
        {"kind": NoMagnitude},
        PageRankMask,
        r"TypeError: Can't instantiate abstract class .*magnitude'?\.$",
    ),
    "no init": (
        {"kind": NoInit},
        PageRankMask,
        r"AttributeError: .* Call super\(\).__init__\(mask, graph\) in the operator",
    ),
    "no positions": ({"kind": NoPositions}, PageRankMask, r"KeyError: Graph\(.*\)\.$"),
    "no defaults": ({}, OnWithoutDefaults, rf"TypeError: .*'graph'\. {ON}"),
    "no return": ({}, OnWithoutReturn, rf"returned a NoneType\. {ON}"),
    "one graph": ({}, OnOneGraph, r"^on\(graph\) ignored its graph: .* 11 tokens each, the operator has 11 tokens"),
}


@pytest.mark.parametrize("name", UNRELATED)
def test_advice_fits_the_error(name):
    options, mask, message = UNRELATED[name]
    with pytest.raises(AssertionError, match=message) as caught:
        tm.testing.check_mask(mask(ragged_graph(), **options), compile=False)
    assert "NumPy" not in str(caught.value)


def test_wrong_gradients_get_no_advice_on_dtypes():
    with pytest.raises(AssertionError, match="Jacobian mismatch") as caught:
        tm.testing.check_mask(PageRankMask(ragged_graph(), kind=HalfGradient), compile=False)
    assert "NumPy" not in str(caught.value)


class KeepsOperator(PageRankMask):
    def __init__(self, graph):
        super().__init__(graph)
        self.operator = PageRank(self, graph)

    def on(self, *_):
        return self.operator


def test_operators_in_place_of_masks_or_kept_by_masks_are_named():
    mask = PageRankMask(ragged_graph())
    with pytest.raises(ValueError, match=r"is a PageRank\. Pass the mask, not an operator"):
        tm.testing.check_mask(mask.on())
    with pytest.raises(AssertionError, match=r"tensor with a gradient history: compute it in on\(\)"):
        tm.testing.check_mask(KeepsOperator(ragged_graph()))


class SameCell(tm.Operator):
    """1 between nodes in the same cell, which is looked up by graph."""

    def __init__(self, mask, graph):
        super().__init__(mask, graph)
        cells = torch.cat([torch.arange(part.num_nodes) % 3 for part in graph.parts or (graph,)])
        parts = torch.cat([torch.full((part.num_nodes,), k) for k, part in enumerate(graph.parts or (graph,))])
        same = (cells[:, None] == cells) & (parts[:, None] == parts)
        self.same = same * mask.logit.sigmoid()[:, None, None]

    def matmul(self, x):
        return self.same.to(x.dtype) @ x

    def magnitude(self):
        return self


def test_entries_between_graphs_of_a_batch_are_named():
    mask = PageRankMask(kind=SameCell)
    batch = tm.Graph.batch([tm.path_graph(4), tm.cycle_graph(5)])
    tm.testing.check_mask(mask, batch, compile=False)
    singles = [Data(edge_index=part.to_edge_index()[0], num_nodes=part.num_nodes) for part in batch.parts]
    loose = tm.Graph.from_pyg(Batch.from_data_list(singles))
    assert loose.parts == ()
    with pytest.raises(AssertionError, match=r"between different graphs .* one is 0\.5.*graph\.graph_index"):
        tm.testing.check_mask(mask, loose, compile=False)


@pytest.mark.parametrize("name", ["walk_symmetric", "walk_shared_heads", "prefix", "sum", "toeplitz_grid", "dense"])
def test_masks_of_the_library_pass(name):
    found = [mask for mask in MASKS if mask.startswith(name)]
    assert found
    tm.testing.check_mask(MASKS[found[0]](), compile=False)


def test_graphs_of_masks_that_take_none_are_refused():
    with pytest.raises(ValueError, match="ToeplitzMask does not take a graph"):
        tm.testing.check_mask(tm.ToeplitzMask((2, 2)), tm.grid_graph(3, 3))


def test_walks_of_a_mask_that_does_not_walk_are_refused():
    with pytest.raises(ValueError, match="PageRankMask does not use walks"):
        PageRankMask(tm.path_graph(3)).on(walks="nonsense")


def test_an_operator_of_ones_own_raises_after_a_parameter_changed():
    mask = PageRankMask(tm.path_graph(3))
    operator = mask.on()
    with torch.no_grad():
        mask.logit.add_(1.0)
    for use in (operator.to_dense, operator.magnitude, lambda: operator @ torch.ones(1, 3, 1)):
        with pytest.raises(RuntimeError, match="An operator is a snapshot"):
            use()
