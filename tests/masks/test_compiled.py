"""One compiled function serves any graph of the same size, and walks that are drawn again."""

import gc
import weakref

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import topomask as tm
from helpers.mask_cases.walks import walk_mask

SIZE = 12
FIRST, SECOND = tm.grid_graph(3, 4), tm.cycle_graph(SIZE)

MASKS = {
    "walk": lambda graph: walk_mask(graph, num_heads=2),
    "asymmetric": lambda graph: walk_mask(graph, num_heads=2, symmetric=False),
    "shared heads": lambda graph: walk_mask(graph, num_heads=2, shared_heads=True),
    "visit": lambda graph: tm.VisitMask(graph, num_walks=4, max_length=3, num_heads=2, seed=0, normalize=True).double(),
    "neighbor": lambda graph: tm.NeighborMask(graph).double(),
    "degree": lambda graph: tm.DegreeMask(graph, num_heads=2, max_degree=3).double(),
    "prefix": lambda graph: tm.PrefixMask(walk_mask(graph, symmetric=False)),
    "sum": lambda graph: walk_mask(graph, symmetric=False) - 0.5 * tm.NeighborMask(graph).double(),
    "power series": lambda graph: tm.PowerSeriesMask(graph, torch.tensor([[1.0, 0.5]], dtype=torch.float64)),
    "diffusion": lambda graph: tm.DiffusionMask(graph, num_heads=2).double(),
    "shortest path": lambda graph: tm.ShortestPathMask(graph, num_heads=2, max_distance=3).double(),
}
# Compilers look at the gradient of whatever they are given.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

# All of them take minutes.
QUICK = ("walk",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MASKS]
WALKING = [
    "walk",
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("asymmetric", "shared heads", "visit", "prefix", "sum")),
]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def walking(mask: tm.Mask) -> tm.Mask:
    return next(part for part in mask.modules() if hasattr(part, "resample"))


class Compiled:
    """Attention with its gradients, compiled, and compared with what it is."""

    def __init__(self, attend=tm.masked_attention, strategy: str = "auto") -> None:
        self.counter = CompileCounterWithBackend("aot_eager")
        self.options = {"feature_map": "elu"} if attend is tm.masked_attention else {}
        self.options["strategy"] = strategy
        self.attend = attend
        self.run = torch.compile(
            lambda q, k, v, mask: attend(q, k, v, mask, **self.options), fullgraph=True, backend=self.counter
        )

    def check(self, make, parameters: list[torch.Tensor], size: int = SIZE) -> None:
        """Compare results and gradients with what ``make`` makes, a mask or an operator."""
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, size, 4, dtype=torch.float64).unbind())
        found = []
        for attend in (self.run, lambda *x: self.attend(*x, **self.options)):
            out = attend(q, k, v, make())
            found.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, *parameters])])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())


def tokens(mask: tm.Mask) -> int:
    return mask.on().num_queries


@pytest.mark.parametrize("strategy", ["pairs", "product", "dense"])
@pytest.mark.parametrize("name", NAMES)
def test_the_default_graph_is_an_input_of_compiled_code(name, strategy):
    mask = MASKS[name](FIRST)
    if strategy == "pairs" and mask.on().cost().pairs is None:
        pytest.skip("no sparse entries")
    compiled, parameters = Compiled(strategy=strategy), list(mask.parameters())
    for graph in (FIRST, SECOND, FIRST):
        mask.graph = graph
        mask.on()
        compiled.check(lambda: mask, parameters, tokens(mask))
    assert compiled.counter.frame_count <= 3


@pytest.mark.parametrize("name", NAMES)
def test_operators_made_outside_are_inputs_of_compiled_code(name):
    mask = MASKS[name](FIRST)
    compiled, parameters = Compiled(), list(mask.parameters())
    for graph in (FIRST, SECOND, FIRST):
        compiled.check(lambda graph=graph: mask.on(graph), parameters, tokens(mask))
    assert compiled.counter.frame_count <= 3


@pytest.mark.parametrize("name", NAMES)
def test_graphs_are_inputs_of_compiled_code(name):
    mask = MASKS[name](FIRST)
    attend = torch.compile(
        lambda q, k, v, graph: tm.masked_attention(q, k, v, mask.on(graph)), fullgraph=True, backend="aot_eager"
    )
    for graph in (FIRST, SECOND, FIRST):
        q, k, v = torch.randn(3, 1, 2, tokens(mask), 4, dtype=torch.float64)
        expected = tm.masked_attention(q, k, v, mask.on(graph))
        torch.testing.assert_close(attend(q, k, v, graph), expected)


def test_a_graph_that_is_new_to_the_mask_is_compiled_for():
    """Its record is computed while code is compiled, and does not become that of another graph."""
    mask = walk_mask(None, num_heads=2)
    attend = torch.compile(
        lambda q, k, v, graph: tm.masked_attention(q, k, v, mask.on(graph)), fullgraph=True, backend="aot_eager"
    )
    graphs = [tm.grid_graph(3, 4), tm.cycle_graph(SIZE), tm.path_graph(SIZE)]
    for graph in (*graphs, *graphs):
        q, k, v = torch.randn(3, 1, 2, SIZE, 4, dtype=torch.float64)
        found = attend(q, k, v, graph)
        torch.testing.assert_close(found, tm.masked_attention(q, k, v, mask.on(graph)))


@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
@pytest.mark.parametrize("name", WALKING)
def test_walks_drawn_anew_are_inputs_of_compiled_code(name, attend):
    mask = MASKS[name](FIRST)
    compiled, parameters = Compiled(attend, "pairs"), list(mask.parameters())
    for seed in range(6):
        walking(mask).resample(seed)
        compiled.check(lambda: mask, parameters, tokens(mask))
    # Sizes that differ from one drawing to the next become symbols; then all is said.
    assert compiled.counter.frame_count <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["walk", "asymmetric", "sum"])
def test_a_hundred_drawings_compile_a_few_times_and_leave_nothing_behind(name):
    mask = MASKS[name](FIRST)
    compiled, parameters = Compiled(strategy="pairs"), list(mask.parameters())
    gone, counts = [], {}
    for seed in range(100):
        # Seeds that no other test has: a record lives as long as any mask of this process with the same recipe.
        walking(mask).resample(1000 + seed)
        compiled.check(lambda: mask, parameters, tokens(mask))
        gone.append(weakref.ref(walking(mask).on()._record))
        if seed % 10 == 9:
            # Compiling itself leaves tensors behind.
            counts.setdefault(compiled.counter.frame_count, []).append(live_tensors())
    # Far from the limit of 8: counts of pairs are rounded to powers of two, which a few drawings cross.
    assert compiled.counter.frame_count <= 5
    assert sum(reference() is not None for reference in gone) == 1
    assert max(len(live) for live in counts.values()) > 4
    assert all(live[-1] <= live[0] + 10 for live in counts.values()), counts


def test_many_graphs_leave_nothing_behind():
    mask = walk_mask(None, num_heads=2)
    compiled, parameters = Compiled(strategy="pairs"), list(mask.parameters())
    gone, counts = [], []
    for number in range(40):
        graph = tm.knn_graph(torch.rand(SIZE, 2, generator=torch.Generator().manual_seed(number)), 2, directed=False)
        compiled.check(lambda graph=graph: mask.on(graph), parameters)
        gone.append(weakref.ref(graph))
        del graph
        if number in (20, 39):
            counts.append(live_tensors())
    assert all(reference() is None for reference in gone)
    assert counts[1] <= counts[0] + 10, counts


def test_parameters_are_inputs_of_compiled_code():
    mask = walk_mask(FIRST, num_heads=2)
    compiled, parameters = Compiled(), list(mask.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(4):
        compiled.check(lambda: mask, parameters)
        parameters[0].grad = torch.randn_like(parameters[0])
        optimizer.step()
    assert compiled.counter.frame_count == 1


def test_compiled_inference_follows_its_parameters():
    mask = walk_mask(FIRST, num_heads=2)
    run = torch.compile(lambda q: tm.masked_attention(q, q, q, mask), fullgraph=True, backend="aot_eager")
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with mode():
                q = torch.randn(1, 2, SIZE, 4, dtype=torch.float64)
                torch.testing.assert_close(run(q), tm.masked_attention(q, q, q, mask))
            with torch.no_grad():
                mask.modulation.weight.mul_(-1.1)
