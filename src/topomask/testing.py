"""Tests of the laws that every mask obeys, for masks of your own."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck

from topomask.attention import masked_attention, masked_softmax_attention
from topomask.graph import Graph
from topomask.masks.mask import Mask, not_a_mask
from topomask.masks.operator import Operator

_ON = "Write on(self, graph=None, walks=None) and return an operator."
_INIT = "Call super().__init__(mask, graph) in the operator before anything else."
_TENSORS = (
    "Write operators with torch operations on x [..., H, N, C] in float32 or float64: convert tensors of your own with "
    "tensor.to(x.dtype). Put NumPy and SciPy code into a function of the graph, decorated with @tm.per_graph, see "
    "docs/own_mask.md."
)


def check_mask(mask: Mask, graph: Graph | None = None, *, compile: bool = True) -> None:
    """Check in double precision that a mask obeys the laws of masks; an AssertionError names the one that fails.

    The product agrees with the dense matrix, the transposed product is the adjoint, the magnitude dominates, gradients
    of inputs and parameters are correct, every attention strategy agrees with the definition, graphs of a batch do not
    interact, the mask can be saved and loaded, changes of parameters take effect, and everything compiles.

    Args:
        mask: The mask, on a graph of at most a few dozen nodes, since dense matrices are formed.
        graph: The graph, if the mask has none of its own.
        compile: Whether to check ``torch.compile(fullgraph=True)`` too, which takes seconds.

    Example:
        >>> import topomask as tm
        >>> tm.testing.check_mask(tm.NeighborMask(tm.grid_graph(3, 3)), compile=False)
    """
    if not isinstance(mask, Mask):
        raise not_a_mask(mask)
    try:
        mask = copy.deepcopy(mask).double()
    except RuntimeError as error:
        if "deepcopy" not in str(error):
            raise
        raise AssertionError("The mask holds a tensor with a gradient history: compute it in on().") from error
    if graph is not None:
        # Raises a ValueError if the mask does not take a graph.
        mask.graph = graph
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _check(check_operator, mask)
        operator = mask.on()
        for of_operator in (check_product, check_adjoint, check_magnitude, check_entries, check_groups):
            _check(of_operator, operator)
        for of_mask in (check_gradients, check_attention, check_state, check_changes):
            _check(of_mask, mask)
        if mask.takes_graph and mask.graph is not None:
            _check(check_batches, mask)
        if compile:
            _check(check_compiled, mask)


def check_operator(mask: Mask) -> None:
    """Check that ``on()`` returns an operator."""
    operator = mask.on()
    found = type(operator).__name__
    assert isinstance(operator, Operator), f"on() must return a tm.Operator, but returned a {found}. {_ON}"


def check_product(operator: Operator) -> None:
    """Check that the product agrees with the dense matrix for any number of columns, in the dtype of its input."""
    x, z = _inputs(operator), _inputs(operator)
    product = operator @ x
    assert _is_close(operator @ x, product), (
        "matmul is random: two products with the same x differ. Keep random numbers in a buffer of the mask."
    )
    assert _is_close(operator @ (0 * x), 0 * product), (
        "matmul adds a constant (a bias?): the product with x = 0 must be 0. Add it to the output of attention."
    )
    assert _is_close(operator @ (x - 2 * z), product - 2 * (operator @ z)), (
        "matmul is not linear in x: M (x - 2 z) differs from M x - 2 M z. Apply functions such as relu to entries, not "
        "to x."
    )
    dense = operator.to_dense()
    expected = (operator.num_heads, operator.num_queries, operator.num_keys)
    assert dense.shape == expected, f"to_dense() must have shape {expected}, but has shape {tuple(dense.shape)}."
    for columns in (3, 1, 0):
        x = _inputs(operator, columns)
        _assert_close("The product", operator @ x, dense @ x)
    found = operator @ _inputs(operator, 2).to(torch.bfloat16)
    assert found.dtype == torch.bfloat16, f"The product with bfloat16 must be bfloat16, but is {found.dtype}."
    assert bool(found.isfinite().all()), "The product with bfloat16 must be finite."


def check_adjoint(operator: Operator) -> None:
    """Check that <M x, y> = <x, M^T y>, in inference mode too."""
    x, y = _inputs(operator).requires_grad_(), _inputs(operator, queries=True)
    product, expected = operator.matmul(x), operator.to_dense().mT @ y
    found = torch.autograd.grad(product, x, y, allow_unused=True)[0] if product.requires_grad else None
    assert _is_close(torch.zeros_like(x) if found is None else found, expected), (
        "matmul is not differentiable in x: is there .detach(), .numpy() or no_grad in it? Its gradient in x must be "
        "M^T y. Use torch operations on x itself, or a torch.autograd.Function with this gradient."
    )
    x = x.detach()
    _assert_close("The adjoint", (operator.matmul(x) * y).sum(), (x * operator.rmatmul(y)).sum())
    _assert_close("The transposed product", operator.rmatmul(y), operator.to_dense().mT @ y)
    with torch.inference_mode():
        _assert_close("The transposed product in inference mode", operator.rmatmul(y), operator.to_dense().mT @ y)


def check_magnitude(operator: Operator) -> None:
    """Check that the magnitude dominates the absolute entries and is its own magnitude."""
    magnitude = operator.magnitude()
    dense = magnitude.to_dense()
    below = (operator.to_dense().abs() - dense).detach().amax()
    assert below <= 1e-10, f"magnitude() must dominate all entries, but is too small by up to {float(below):.3g}."
    _assert_close("The magnitude of the magnitude", magnitude.magnitude().to_dense(), dense)
    x = _inputs(operator)
    _assert_close("The product of the magnitude", magnitude @ x, dense @ x)


def check_entries(operator: Operator) -> None:
    """Check that entries() agrees with the dense matrix and is within the size stated by cost()."""
    cost = operator.cost()
    if cost.pairs is None:
        return
    pattern, values, magnitudes = operator.entries()
    shape = len(pattern.row_ptr) - 1, len(pattern.column_ptr) - 1
    rows = torch.repeat_interleave(torch.arange(shape[0]), pattern.row_ptr.diff().cpu())
    for name, found, expected in (("entries", values, operator), ("magnitudes", magnitudes, operator.magnitude())):
        dense = torch.zeros(len(found), *shape, dtype=found.dtype)
        dense[:, rows, pattern.columns.cpu().long()] = found.detach().cpu()
        blocks = expected.to_dense().detach().cpu()
        is_shared = len(values) == operator.num_heads
        _assert_close(f"The {name}", dense, blocks if is_shared else torch.block_diag(*blocks)[None])
    assert cost.max_pairs is None or values.numel() <= cost.max_pairs, "cost().max_pairs is below the entries."


def check_groups(operator: Operator) -> None:
    """Check that entries between different graphs of a batch are zero."""
    groups = operator.key_groups
    if groups is not None and operator.num_queries == operator.num_keys:
        between = operator.to_dense()[:, groups[:, None] != groups].detach().abs()
        assert not (between > 1e-10).any(), (
            f"Entries between different graphs of a batch must be zero, but one is {float(between.amax()):.3g}. "
            "Compare graph.graph_index of rows and columns: graph.parts is empty for a batch that Graph.from_pyg made."
        )


def check_gradients(mask: Mask) -> None:
    """Check the gradients of products, in inputs and in parameters."""
    assert _is_close(mask.to_dense(), mask.to_dense()), (
        "on() is random: two operators on the same graph differ. Keep random numbers in a buffer of the mask."
    )
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
    """Check that every attention strategy agrees with the definition and has the same gradients."""
    operator = mask.on()
    q, k, v = _tokens(operator)
    parameters = [p for p in mask.parameters() if p.requires_grad]
    pairs = [] if operator.cost().pairs is None else ["pairs"]
    ways: dict[str, tuple[Any, list[str]]] = {
        "linear": (masked_attention, ["dense", "product", *pairs]),
        "softmax": (masked_softmax_attention, ["dense", *pairs]),
    }
    for kind, (attend, strategies) in ways.items():
        with torch.no_grad():
            expected = _definition(operator, q, k, v, kind)
        first: Any = None
        for strategy in strategies:
            out = attend(q, k, v, mask, normalizer="absolute", strategy=strategy)
            _assert_close(f"{kind} attention by strategy {strategy!r}", out, expected)
            gradients = torch.autograd.grad(out.square().sum(), [q, k, v, *parameters])
            first = first or gradients
            for one, other in zip(gradients, first, strict=True):
                _assert_close(f"The gradient of {kind} attention by strategy {strategy!r}", one, other)


def check_batches(mask: Mask) -> None:
    """Check that the mask on a batch is block-diagonal, with the mask on each graph as a block."""
    graph = mask.graph
    assert graph is not None
    whole, alone = mask.on(Graph.batch([graph, graph])).to_dense(), mask.on(graph).to_dense()
    expected = torch.stack([torch.block_diag(block, block) for block in alone])
    assert whole.shape[-1] == 2 * alone.shape[-1], (
        f"on(graph) ignored its graph: on a batch of two graphs with {alone.shape[-1]} tokens each, the operator has "
        f"{whole.shape[-1]} tokens. Build it from graph = self.graph_or(graph, walks)."
    )
    prefix = alone.shape[-1] - graph.num_nodes
    # Prefix tokens of all graphs come before the nodes.
    tokens = torch.arange(whole.shape[-1], device=whole.device).split((2 * prefix, 2 * graph.num_nodes))
    order = torch.cat([part.view(2, len(part) // 2) for part in tokens], dim=1).flatten()
    _assert_close("The mask on a batch of two equal graphs", whole[:, order][:, :, order], expected)


def check_state(mask: Mask) -> None:
    """Check that a mask that loads the state of another gives the same values."""
    other = copy.deepcopy(mask)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    other.load_state_dict(mask.state_dict())
    _assert_close("The mask after load_state_dict", other.to_dense(), mask.to_dense())


def check_changes(mask: Mask) -> None:
    """Check that the mask follows a parameter that changes under ``no_grad``, in whatever way."""
    mask = copy.deepcopy(mask)
    with torch.no_grad():
        for parameter in mask.parameters():
            mask.to_dense()
            # Does not change the version of the parameter.
            parameter.data.copy_(parameter * 0.9 + 0.05)
            fresh = copy.deepcopy(mask).to_dense()
            _assert_close("The mask after a parameter was overwritten", mask.to_dense(), fresh)


def check_compiled(mask: Mask) -> None:
    """Check that compiled attention gives the same values and gradients, also after parameters change."""
    q, k, v = _tokens(mask.on())
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


def _check(law: Callable[[Any], None], subject: Any) -> None:
    """Check a law; an error in the mask's own code becomes an AssertionError that names the law and the fix."""
    try:
        law(subject)
    except Exception as error:
        what, _, stack = str(error).partition("from user code:")
        if "no default graph" in what and law is check_operator:
            raise ValueError(f"{error} To check a mask without a graph, call check_mask(mask, graph).") from error
        # Laws name themselves, and so do settings that do not fit.
        if not stack and isinstance(error, (AssertionError, ValueError) if law is check_operator else AssertionError):
            raise
        own = [line for line in re.findall(r'".*?", line \d+', stack) if str(Path(__file__).parent) not in line]
        place = f" in {own[-1]}" if own else ""
        what = " ".join(what.partition("\n\n")[0].split())
        text = f"{law.__doc__} It failed with {type(error).__name__}{place}: {what.rstrip('.')}."
        raise AssertionError(f"{text} {_advice(error, what, bool(stack))}".rstrip()) from (None if stack else error)


def _advice(error: Exception, what: str, is_compiler: bool) -> str:
    """Return the fix for an error in the mask's own code, or nothing if the error says it all."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Operator) and error.name in Operator.__annotations__:
        return _INIT
    if isinstance(error, TypeError) and ".on() " in what:
        return _ON
    # Not the dtype of a tensor that is shown.
    is_about_tensors = re.search(r"numpy|ndarray|scalar type|output type|\bdtypes?\b(?!=)", what, re.IGNORECASE)
    return _TENSORS if is_compiler or is_about_tensors else ""


def _inputs(operator: Operator, columns: int = 3, *, batch: int = 2, queries: bool = False) -> Tensor:
    """Make a non-contiguous input, [batch, H, N, columns]."""
    size = operator.num_queries if queries else operator.num_keys
    shape = (batch, size, columns, operator.num_heads)
    return torch.randn(shape, dtype=torch.float64, device=operator.device).permute(0, 3, 1, 2)


def _tokens(operator: Operator) -> tuple[Tensor, Tensor, Tensor]:
    def tokens(*size: int) -> Tensor:
        shape = (2, max(2, operator.num_heads), *size)
        return torch.randn(shape, dtype=torch.float64, device=operator.device, requires_grad=True)

    return tokens(operator.num_queries, 4), tokens(operator.num_keys, 4), tokens(operator.num_keys, 5)


def _definition(operator: Operator, q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
    """Compute attention from its definition, with dense matrices."""
    scores = q.relu() @ k.relu().mT if kind == "linear" else torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    total = (operator.magnitude().to_dense() * scores).sum(dim=-1, keepdim=True)
    out = (operator.to_dense() * scores) @ v
    return torch.where(total == 0, 0.0, out / torch.where(total == 0, 1.0, total))


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-8, atol=1e-8, equal_nan=True)


def _assert_close(what: str, found: Tensor, expected: Tensor) -> None:
    options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8, "check_dtype": False}
    torch.testing.assert_close(found, expected, **options, msg=lambda text: f"{what} is wrong. {text}")
