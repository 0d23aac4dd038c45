"""Every mask compiles to one graph of operations, forward and backward."""

import pytest
import torch

import topomask as tm
from helpers.mask_cases import CASES
from helpers.operator_inputs import columns, strategies, tokens

EXACT = {"rtol": 1e-9, "atol": 1e-9}

# All of them take minutes.
QUICK = ("walk_symmetric", "toeplitz_grid")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare(eager, inputs: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
    """Results and gradients of a function, and of the same compiled."""
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    leaves = [*inputs, *parameters]
    found = []
    for run in (eager, compiled):
        out = run(*inputs)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
@pytest.mark.parametrize("name", NAMES)
def test_attention(name, kernel):
    torch.manual_seed(0)
    case = CASES[name]()
    q, k, v = (x[:1].contiguous().requires_grad_() for x in tokens(case.on(), heads=max(2, case.on().num_heads)))
    attend = tm.masked_attention if kernel == "linear" else tm.masked_softmax_attention
    nodes = {"query_nodes": case.query_nodes, "key_nodes": case.key_nodes}
    options = {"feature_map": "elu"} if kernel == "linear" else {}
    for strategy in strategies(case.on(), kernel):

        def run(q, k, v, strategy=strategy):
            return attend(q, k, v, case.mask, strategy=strategy, **nodes, **options)

        compare(run, [q, k, v], case.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_products(name):
    """With the mask, and with its transpose."""
    torch.manual_seed(0)
    case = CASES[name]()
    x = columns(case.on(), batch=1).requires_grad_()
    y = columns(case.on(), batch=1, queries=True).requires_grad_()
    compare(lambda x: case.on()(x), [x], case.parameters())
    compare(lambda y: case.on().rmatmul(y), [y], case.parameters())


@pytest.mark.parametrize("name", ["degree", "degree_batch", "low_rank", "dense"])
def test_the_default_transposed_product(name):
    """Of operators whose products are made of torch's own operations: the compiler knows no derivatives of others."""
    torch.manual_seed(0)
    case = CASES[name]()
    y = columns(case.on(), batch=1, queries=True)
    compiled = torch.compile(lambda y: tm.Operator.rmatmul(case.on(), y), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(y), case.on().to_dense().mT @ y, **EXACT)
