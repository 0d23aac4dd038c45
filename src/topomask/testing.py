"""The laws that every mask obeys, for tests of masks of your own."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck

from topomask.attention import masked_attention, masked_softmax_attention
from topomask.graph import Graph
from topomask.masks.mask import Mask
from topomask.masks.operator import Operator

_EXACT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}


def check_mask(mask: Mask, graph: Graph | None = None, *, compile: bool = True) -> None:
    """Try the laws of masks on a mask, in double precision; an AssertionError says which one does not hold.

    Its product is linear and agrees with the dense matrix, the transposed product is the adjoint, the magnitude
    dominates, gradients are right in inputs and parameters, attention agrees with its definition by every strategy,
    graphs of a batch do not see each other, the mask survives a state dict, changes of parameters are noticed, and all
    of it compiles.

    Args:
        mask: The mask, on a graph of a few dozen nodes at most: dense matrices are formed.
        graph: The graph, where the mask has none of its own.
        compile: Whether to try ``torch.compile(fullgraph=True)`` too, which takes seconds.

    Example:
        >>> import topomask as tm
        >>> tm.testing.check_mask(tm.NeighborMask(tm.grid_graph(3, 3)), compile=False)
    """
    mask = copy.deepcopy(mask).double()
    if graph is not None:
        # A ValueError where the mask belongs to no graph.
        mask.graph = graph
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operator = mask.on()
        check_product(operator)
        check_adjoint(operator)
        check_magnitude(operator)
        check_entries(operator)
        check_gradients(mask)
        check_attention(mask)
        check_state(mask)
        check_changes(mask)
        if mask.takes_graph and mask.graph is not None:
            check_batches(mask)
        if compile:
            check_compiled(mask)


def check_product(operator: Operator) -> None:
    """The product agrees with the dense matrix, for any number of columns, in the precision of its input."""
    dense = operator.to_dense()
    expected = (operator.num_heads, operator.num_queries, operator.num_keys)
    assert dense.shape == expected, f"to_dense() must have shape {expected}, but has shape {tuple(dense.shape)}."
    for columns in (3, 1, 0):
        x = _inputs(operator, columns)
        found = operator @ x
        _assert_close("The product", found, dense @ x)
    half = _inputs(operator, 2).to(torch.bfloat16)
    found = operator @ half
    assert found.dtype == torch.bfloat16, f"The product with bfloat16 must be bfloat16, but is {found.dtype}."
    assert bool(found.isfinite().all()), "The product with bfloat16 must be finite."


def check_adjoint(operator: Operator) -> None:
    """<M x, y> = <x, M^T y>, in inference mode too."""
    x, y = _inputs(operator), _inputs(operator, queries=True)
    _assert_close("The adjoint", (operator.matmul(x) * y).sum(), (x * operator.rmatmul(y)).sum())
    _assert_close("The transposed product", operator.rmatmul(y), operator.to_dense().mT @ y)
    with torch.inference_mode():
        _assert_close("The transposed product in inference mode", operator.rmatmul(y), operator.to_dense().mT @ y)


def check_magnitude(operator: Operator) -> None:
    """The magnitude dominates the absolute entries, and is its own magnitude."""
    magnitude = operator.magnitude()
    dense = magnitude.to_dense()
    below = (operator.to_dense().abs() - dense).detach().amax()
    assert below <= 1e-10, f"magnitude() must dominate all entries, but is smaller by {float(below):.3g} somewhere."
    _assert_close("The magnitude of the magnitude", magnitude.magnitude().to_dense(), dense)
    x = _inputs(operator)
    _assert_close("The product of the magnitude", magnitude @ x, dense @ x)


def check_entries(operator: Operator) -> None:
    """Entries of a sparse operator are those of the dense matrix, and no more than its cost says."""
    cost = operator.cost()
    if cost.pairs is None:
        return
    pattern, values, magnitudes = operator.entries()
    rows = torch.repeat_interleave(torch.arange(len(pattern.row_ptr) - 1), pattern.row_ptr.diff().cpu())
    shape = len(pattern.row_ptr) - 1, len(pattern.column_ptr) - 1
    for name, found, expected in (("entries", values, operator), ("magnitudes", magnitudes, operator.magnitude())):
        dense = torch.stack(
            [
                torch.zeros(shape, dtype=row.dtype).index_put((rows, pattern.columns.long()), row)
                for row in found.detach().cpu()
            ]
        )
        blocks = expected.to_dense().detach().cpu()
        is_shared = len(values) == operator.num_heads
        _assert_close(f"The {name}", dense, blocks if is_shared else torch.block_diag(*blocks)[None])
    assert cost.max_pairs is None or values.numel() <= cost.max_pairs, "cost().max_pairs is less than the entries."


def check_gradients(mask: Mask) -> None:
    """Gradients of products are right, in inputs and in parameters."""
    operator = mask.on()
    for name, parameter in mask.named_parameters():
        total = mask.to_dense().sum()
        is_used = total.requires_grad and torch.autograd.grad(total, parameter, allow_unused=True)[0] is not None
        assert is_used, f"No entry of the mask depends on the parameter {name!r}."
    parameters = [p for p in mask.parameters() if p.requires_grad]
    x = _inputs(operator, 2, batch=1).requires_grad_()
    y = _inputs(operator, 2, batch=1, queries=True).requires_grad_()
    options: dict[str, Any] = {"fast_mode": True, "nondet_tol": 1e-12}
    assert gradcheck(lambda x, *_: mask.on() @ x, (x, *parameters), **options)
    assert gradcheck(lambda y, *_: mask.on().rmatmul(y), (y, *parameters), **options)
    if parameters:
        assert gradcheck(lambda *_: mask.on().magnitude().to_dense(), tuple(parameters), **options)


def check_attention(mask: Mask) -> None:
    """Attention is what it is defined to be by every strategy, with the same gradients."""
    operator = mask.on()
    q, k, v = (x.requires_grad_() for x in _tokens(operator))
    parameters = [p for p in mask.parameters() if p.requires_grad]
    found: dict[tuple[str, str], list[Tensor]] = {}
    is_sparse = operator.cost().pairs is not None
    ways: list[tuple[str, Any, list[str]]] = [
        ("linear", masked_attention, ["dense", "product"]),
        ("softmax", masked_softmax_attention, ["dense"]),
    ]
    for kind, attend, strategies in ways:
        with torch.no_grad():
            expected = _definition(operator, q, k, v, kind)
        for strategy in strategies + ["pairs"] * is_sparse:
            out = attend(q, k, v, mask, normalizer="absolute", strategy=strategy)
            _assert_close(f"{kind} attention by strategy {strategy!r}", out, expected)
            gradients = torch.autograd.grad(out.square().sum(), [q, k, v, *parameters])
            for one, other in zip(gradients, found.setdefault((kind, ""), list(gradients)), strict=True):
                _assert_close(f"The gradient of {kind} attention by strategy {strategy!r}", one, other)


def check_batches(mask: Mask) -> None:
    """On a batch of graphs every graph is as it is alone, and sees no other."""
    graph = mask.graph
    assert graph is not None
    whole, alone = mask.on(Graph.batch([graph, graph])).to_dense(), mask.on(graph).to_dense()
    expected = torch.stack([torch.block_diag(block, block) for block in alone])
    prefix = alone.shape[-1] - graph.num_nodes
    # Tokens in front of the nodes come first, for all graphs.
    first = torch.cat([torch.arange(prefix), torch.arange(2 * prefix, 2 * prefix + graph.num_nodes)])
    second = torch.cat([prefix + first[:prefix], graph.num_nodes + first[prefix:]])
    order = torch.cat([first, second]).to(whole.device)
    whole = whole[:, order][:, :, order]
    _assert_close("The mask on a batch of two equal graphs", whole, expected)


def check_state(mask: Mask) -> None:
    """A mask that loads the state of another is the same."""
    other = copy.deepcopy(mask)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    other.load_state_dict(mask.state_dict())
    _assert_close("The mask after load_state_dict", other.to_dense(), mask.to_dense())


def check_changes(mask: Mask) -> None:
    """Under ``no_grad``, a parameter that changes in any way changes the mask."""
    mask = copy.deepcopy(mask)
    with torch.no_grad():
        for parameter in mask.parameters():
            before = mask.to_dense().clone()
            # Behind PyTorch's back: no version tells of it.
            parameter.data.copy_(parameter * 0.9 + 0.05)
            fresh = copy.deepcopy(mask).to_dense()
            _assert_close("The mask after a parameter was overwritten", mask.to_dense(), fresh)
            assert mask.to_dense().shape == before.shape


def check_compiled(mask: Mask) -> None:
    """Compiled attention gives the same values and gradients, and does so again with other parameters."""
    q, k, v = (x.requires_grad_() for x in _tokens(mask.on()))
    parameters = [p for p in mask.parameters() if p.requires_grad]
    few = torch.tensor([0], device=q.device)
    ways: dict[str, Any] = {
        "strategy 'auto'": lambda q, k, v: masked_attention(q, k, v, mask),
        "strategy 'product'": lambda q, k, v: masked_attention(q, k, v, mask, strategy="product"),
        "query_nodes": lambda q, k, v: masked_attention(q[:, :, :1], k, v, mask, query_nodes=few),
    }
    for name, attend in ways.items():
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            results = []
            for run in (attend, compiled):
                out = run(q, k, v)
                results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, *parameters])])
            for one, other in zip(*results, strict=True):
                _assert_close(f"Compiled attention with {name}, or its gradient,", other, one)
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(0.95)


def _inputs(operator: Operator, columns: int = 3, *, batch: int = 2, queries: bool = False) -> Tensor:
    """Non-contiguous input of the right shape."""
    size = operator.num_queries if queries else operator.num_keys
    shape = (batch, size, columns, operator.num_heads)
    return torch.randn(shape, dtype=torch.float64, device=operator.device).permute(0, 3, 1, 2)


def _tokens(operator: Operator) -> tuple[Tensor, Tensor, Tensor]:
    heads = max(2, operator.num_heads)
    sizes = (operator.num_queries, 4), (operator.num_keys, 4), (operator.num_keys, 5)
    q, k, v = (torch.randn(2, heads, *size, dtype=torch.float64, device=operator.device) for size in sizes)
    return q, k, v


def _definition(operator: Operator, q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
    """Attention as it is defined, with every matrix written out."""
    scores = q.relu() @ k.relu().mT if kind == "linear" else torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    total = (operator.magnitude().to_dense() * scores).sum(dim=-1, keepdim=True)
    out = (operator.to_dense() * scores) @ v
    return torch.where(total == 0, 0.0, out / torch.where(total == 0, 1.0, total))


def _assert_close(what: str, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        found, expected, **_EXACT, check_dtype=False, msg=lambda text: f"{what} is not what it must be. {text}"
    )
