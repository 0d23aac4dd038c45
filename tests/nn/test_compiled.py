"""Compiled layers and models that are called with a new graph every time."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import topomask as tm
from helpers.mask_cases import MASKS

# All of them take half an hour.
CASES = [
    (name, kind) if (name, kind) == ("neighbor", "linear") else pytest.param(name, kind, marks=pytest.mark.slow)
    for name in MASKS
    for kind in ("linear", "softmax")
]
# Two graphs of one size, then of others. torch gives up on a function that it compiled eight times.
SIZES = (12, 12, 15, 9, 20, 17, 31, 12, 13, 14)
FEW_SIZES = SIZES[:3]
MAX_COMPILED = 5

# Compilers look at the gradient of whatever they are given.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def neighbours(size: int, seed: int) -> tm.Graph:
    return tm.knn_graph(np.random.default_rng(seed).random((size, 3)), 3, directed=False)


def tree(size: int, seed: int) -> tm.Graph:
    rng = np.random.default_rng(seed)
    return tm.Graph.from_edges([(int(rng.integers(node)), node) for node in range(1, size)], size)


def path(size: int, _: int) -> tm.Graph:
    return tm.path_graph(size)


def family(mask: tm.Mask):
    """Graphs that a mask can be on, and the tokens that it has beside nodes."""
    for make in (neighbours, tree, path):
        try:
            extra = mask.on(make(12, 0)).num_queries - 12
        except ValueError:
            continue
        if 0 <= extra <= 2:
            return make, extra
    return pytest.skip("is on no other graph")


def compare(module, sizes, arguments) -> int:
    """Results and gradients, compiled and not; how often it was compiled."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for number, size in enumerate(sizes):
        x = arguments(size, number)
        leaves = [x[0].requires_grad_(), *(p for p in module.parameters() if p.requires_grad)]
        found = []
        for run in (compiled, module):
            # A graph that nothing was computed of.
            out = run(x[0], graph=x[1]())
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)])
        for ours, theirs in zip(*found, strict=True):
            theirs = torch.zeros_like(ours) if theirs is None and ours is not None else theirs
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    return counter.frame_count


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_new_graph_in_every_call(name, kind):
    torch.manual_seed(0)
    mask = MASKS[name]().double()
    make, extra = family(mask)
    heads = max(2, mask.num_heads)
    layer = tm.nn.MaskedAttention(4 * heads, heads, mask, kind=kind).double()

    def arguments(size, seed):
        return torch.randn(2, size + extra, 4 * heads, dtype=torch.float64), lambda: make(size, seed)

    assert compare(layer, FEW_SIZES if name == "neighbor" else SIZES, arguments) <= MAX_COMPILED


def test_graphs_of_one_size_do_not_share_a_record():
    """The second comes while that of the first is still there, and after it is gone."""
    mask = tm.NeighborMask().double()
    run = torch.compile(lambda x, graph: mask.on(graph)(x), fullgraph=True, backend="aot_eager")
    x = torch.eye(6, dtype=torch.float64)[None]
    graphs = [tm.Graph.from_edges([(0, node), (1, 2)], 6) for node in (3, 4, 5)]
    for graph in graphs:
        assert torch.equal(run(x, graph), mask.on(graph).to_dense())
    gone = [weakref.ref(graph) for graph in graphs]
    del graphs, graph
    gc.collect()
    assert not any(reference() for reference in gone)
    for node in (5, 4, 3):
        graph = tm.Graph.from_edges([(0, node), (1, 2)], 6)
        found = run(x, graph)
        assert torch.equal(found, mask.on(graph).to_dense())


def test_a_graph_that_a_mask_cannot_be_on_is_named():
    mask = tm.DiffusionMask().double()
    run = torch.compile(lambda x, graph: mask.on(graph)(x), backend="aot_eager")
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(run(x, tm.path_graph(4)), mask.on(tm.path_graph(4)) @ x)
    # Which torch puts into an error of its own.
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError, match="`graph` must be undirected, but is directed"):
        run(x, tm.Graph.from_edges([(0, 1)], 4, directed=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"local": "gcn", "readout": "mean"},
        {"mask": "diffusion", "kind": "softmax", "readout": "attention"},
        {"mask": "all", "local": "sum"},
    ],
)
def test_models_on_batches_of_new_graphs(options):
    torch.manual_seed(0)
    model = tm.models.GraphTransformer(4, 2, dim=8, depth=2, num_heads=2, **options).double()

    def arguments(size, seed):
        graphs = [(size, seed), (size - 3, seed + 50), (4, seed + 70)]
        tokens = torch.randn(2 * size + 1, 4, dtype=torch.float64)
        return tokens, lambda: tm.Graph.batch([neighbours(*graph) for graph in graphs])

    assert compare(model, FEW_SIZES, arguments) <= MAX_COMPILED


@pytest.mark.slow
def test_blocks():
    torch.manual_seed(0)
    attention = tm.nn.MaskedAttention(8, 2, tm.WalkMask(num_heads=2, seed=0))
    norms = (torch.nn.LayerNorm(8), torch.nn.LayerNorm(8))
    block = tm.nn.TransformerBlock(attention, tm.nn.MLP(8, 16), *norms).double()

    def arguments(size, seed):
        return torch.randn(2, size, 8, dtype=torch.float64), lambda: neighbours(size, seed)

    assert compare(block, FEW_SIZES, arguments) <= MAX_COMPILED


EXPORT = """
import torch, topomask as tm
graph = tm.grid_graph(3, 4)
layer = tm.nn.MaskedAttention(8, 2, tm.NeighborMask(graph))
x = torch.randn(2, 12, 8)
program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=64)},))
for batch in (1, 5):
    x = torch.randn(batch, 12, 8)
    torch.testing.assert_close(program.module()(x), layer(x))
"""


def test_exporting_is_the_first_thing_that_a_process_does():
    """torch.export puts functions of its own for Python's, which Numba must not see when it is loaded."""
    done = subprocess.run([sys.executable, "-c", EXPORT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("feature_map", ["relu", "softmax"])
def test_an_exported_layer_takes_batches_of_any_size(feature_map):
    graph = tm.grid_graph(3, 4)
    for mask in (tm.WalkMask(graph, num_heads=2, seed=0), tm.NeighborMask(graph) + tm.DegreeMask(graph)):
        layer = tm.nn.MaskedAttention(8, 2, mask, feature_map=feature_map)
        shapes = ({0: torch.export.Dim("batch", max=64)},)
        program = torch.export.export(layer, (torch.randn(2, 12, 8),), dynamic_shapes=shapes)
        for batch in (1, 5):
            x = torch.randn(batch, 12, 8)
            torch.testing.assert_close(program.module()(x), layer(x))
