"""Compare what the library gives for a mask and for a call of attention with the plain definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import topomask as tm
from fuzz.formulas import UNITS, Answer, Precision, attend, bound_gradients
from fuzz.graphs import MismatchError
from fuzz.plain import PlainMask

if TYPE_CHECKING:
    from fuzz.cases import Call, Case
    from fuzz.runner import Report

# Step and relative error of central differences.
STEP, DIFFERENCE = 1e-6, 1e-4


def check(what: str, got: Tensor, expected: Tensor, bound: Tensor, precision: Precision) -> None:
    """A MismatchError unless numbers agree, given the size of the terms that they are sums of."""
    if got.shape != expected.shape:
        raise MismatchError(f"{what} has shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    kind = torch.finfo(got.dtype)
    got, expected, bound = got.detach().double(), expected.detach(), bound.detach()
    tolerance = UNITS * precision.eps * bound + 2 * kind.eps * expected.abs() + 8 * max(kind.tiny, precision.tiny)
    # What does not fit in the precision of the result, or in that of the arithmetic, may come out as anything. What the
    # formula itself loses must be finite.
    beyond = ~(bound < 1e-4 * min(kind.max, precision.largest)) | (expected.isnan() & got.isfinite())
    wrong = ~(((got - expected).abs() <= tolerance) | beyond)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        excess = ((got - expected).abs() / tolerance)[wrong].nan_to_num(torch.inf).max()
        raise MismatchError(
            f"{what}{list(place)} is {got[place]:.9g} instead of {expected[place]:.9g} "
            f"({int(wrong.sum())} of {wrong.numel()} wrong, up to {excess:.3g} tolerances)"
        )


def double_parameters(plain: PlainMask) -> dict[str, Tensor]:
    """Parameters in double precision, each a leaf."""
    return {name: x.detach().double().requires_grad_() for name, x in plain.parameters().items()}


def error_of(plain: PlainMask, magnitude: Tensor, precision: Precision) -> Tensor:
    """How large the rounding errors of entries may be, in units of the last place."""
    error = magnitude.detach()
    noise = torch.full(error.shape[1:], plain.noise, dtype=torch.float64)
    if not plain.exact:
        noise += precision.tiny / precision.eps
    if error.shape[1] == error.shape[2] == len(plain.groups):
        groups = torch.from_numpy(plain.groups)
        noise = noise * (groups[:, None] == groups)
    return error + noise


def check_dense(case: Case) -> None:
    """M and its magnitude as dense matrices, and the gradient of M."""
    plain = case.plain
    argument, leaves = plain.argument(), double_parameters(plain)
    operator = argument.on() if isinstance(argument, tm.Mask) else argument
    matrix, magnitude = plain.define(leaves)
    # A mask in float32 has loads of float32, also where its operator is in float64.
    precision = Precision.of(operator.dtype, case.dtype)
    error = error_of(plain, magnitude, precision)
    floor = error + precision.tiny / precision.eps
    found = operator.to_dense()
    check("to_dense()", found, matrix, floor, precision)
    check("magnitude().to_dense()", operator.magnitude().to_dense(), magnitude, floor, precision)
    own = plain.parameters()
    if not own or not matrix.requires_grad:
        return
    grad = torch.randn(matrix.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = torch.autograd.grad(found, list(own.values()), grad.to(found.dtype), allow_unused=True)
    expected = torch.autograd.grad(matrix, list(leaves.values()), grad, allow_unused=True, retain_graph=True)
    bounds = parameter_bounds(plain, leaves, matrix, magnitude, grad.abs())
    compare_parameters("gradient of to_dense()", own, got, expected, bounds, precision)


def parameter_bounds(
    plain: PlainMask, leaves: dict[str, Tensor], matrix: Tensor, magnitude: Tensor, weight: Tensor
) -> list[Tensor]:
    """Sizes of the terms of the gradient in every parameter, by the derivative of the magnitude and random signs."""
    generator = torch.Generator().manual_seed(1)
    total = [torch.zeros_like(x) for x in leaves.values()]
    # A term that the formula cannot bound may be anything.
    weight = weight.detach().nan_to_num(1e307, 1e307, 0.0).clamp(max=1e307)
    for number in range(4):
        signs = torch.randint(2, weight.shape, generator=generator).double() * 2.0 - 1.0
        target = magnitude if number < 2 else matrix
        if not target.requires_grad:
            continue
        cotangent = weight if number == 0 else weight * signs
        found = torch.autograd.grad(target, list(leaves.values()), cotangent, allow_unused=True, retain_graph=True)
        for place, x in enumerate(found):
            if x is not None:
                total[place] = total[place] + x.abs() + 1e-3 * x.abs().max() if x.numel() else total[place]
    # Entries that err by as much all the same, whatever their size, move every parameter.
    total = [x + plain.noise * weight.sum() for x in total]
    if plain.homogeneous:
        # The terms of a slope that vanishes: those of a product of a power of the parameter and of its inverse.
        size = (weight * magnitude.detach()).sum()
        total = [x + size / p.detach().abs().clamp(min=1e-300) for x, p in zip(total, leaves.values(), strict=True)]
    return total


def compare_parameters(
    what: str,
    own: dict[str, Tensor],
    got: tuple[Tensor | None, ...],
    expected: tuple[Tensor | None, ...],
    bounds: list[Tensor],
    precision: Precision,
) -> None:
    """Compare gradients in parameters; one that is missing stands for 0."""
    for (name, parameter), x, y, bound in zip(own.items(), got, expected, bounds, strict=True):
        x = torch.zeros_like(parameter) if x is None else x
        y = torch.zeros_like(bound) if y is None else y
        if parameter.dtype in (torch.bfloat16, torch.float16):
            # Gradients of every use are rounded before they are added up.
            bound = bound * (torch.finfo(parameter.dtype).eps / precision.eps)
        check(f"{what} in {name}", x, y, bound, precision)


def check_product(case: Case, rng: np.random.Generator) -> None:
    """M x and M^T x, with their gradients."""
    plain = case.plain
    argument, leaves, own = plain.argument(), double_parameters(plain), plain.parameters()
    operator = argument.on() if isinstance(argument, tm.Mask) else argument
    heads = operator.num_heads if operator.num_heads > 1 else int(rng.integers(1, 3))
    dtype = torch.float64 if rng.random() < 0.5 else torch.float32
    transpose = bool(rng.random() < 0.5)
    size, other = (operator.num_queries, operator.num_keys)[:: 1 if transpose else -1]
    shape = (*((2,) if rng.random() < 0.5 else ()), heads, size, int(rng.integers(1, 4)))
    x = torch.from_numpy(rng.normal(size=shape)).to(dtype).requires_grad_()
    grad = torch.from_numpy(rng.normal(size=(*shape[:-2], other, shape[-1]))).to(dtype)
    precision = Precision.of(dtype, operator.dtype, case.dtype)
    matrix, magnitude = plain.define(leaves)
    error = error_of(plain, magnitude, precision) + precision.tiny / precision.eps
    y = x.detach().double().requires_grad_()
    turned, size_of = (matrix.mT, error.mT) if transpose else (matrix, error)
    expected, found = turned @ y, operator.rmatmul(x) if transpose else operator @ x
    name = "rmatmul" if transpose else "matmul"
    check(name, found, expected, size_of @ y.detach().abs(), precision)
    got = torch.autograd.grad(found, [x, *own.values()], grad, allow_unused=True)
    wanted = torch.autograd.grad(expected, [y, *leaves.values()], grad.double(), allow_unused=True, retain_graph=True)
    check(f"gradient of {name}", got[0], wanted[0], size_of.mT @ grad.double().abs(), precision)
    outer = grad.double().abs() @ y.detach().abs().mT
    outer = outer.mT if transpose else outer
    weight = outer.reshape(-1, *outer.shape[-3:]).sum(dim=0)
    weight = weight.sum(dim=0, keepdim=True) if len(matrix) == 1 else weight
    bounds = parameter_bounds(plain, leaves, matrix, magnitude, weight)
    compare_parameters(f"gradient of {name}", own, got[1:], wanted[1:], bounds, precision)


class Problem:
    """A call in double precision."""

    def __init__(self, case: Case, call: Call, precision: Precision) -> None:
        self.case, self.call, self.precision = case, call, precision
        self.leaves = double_parameters(case.plain)
        self.tokens = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
        if call.padded is not None:
            place = (
                call.padded if len(call.padded) == 1 else call.padded.reshape(*call.q.shape[:-3], 1, call.k.shape[-2])
            )
            with torch.no_grad():
                for x in self.tokens[1:]:
                    x.masked_fill_(place[..., None], 0.0)
        groups = torch.from_numpy(case.plain.groups)
        keys = call.options.get("key_nodes")
        self.groups = groups if keys is None else groups[keys]

    def expand(self, tokens: list[Tensor]) -> list[Tensor]:
        """Queries, keys and values with one batch axis and equal heads."""
        q, k, v = (x.reshape(-1, *x.shape[-3:]) if x.numel() else x.reshape(*self._empty(x)) for x in tokens)
        times = q.shape[1] // k.shape[1]
        return [q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)]

    @staticmethod
    def _empty(x: Tensor) -> tuple[int, ...]:
        return int(np.prod(x.shape[:-3])), *x.shape[-3:]

    def define(self, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The whole M and magnitude, then those of this call with a bound on errors."""
        matrix, magnitude = self.case.plain.define(leaves)
        error = error_of(self.case.plain, magnitude, self.precision)
        queries, keys = (self.call.options.get(name) for name in ("query_nodes", "key_nodes"))
        parts = []
        for x in (matrix, magnitude, error):
            x = x if queries is None else x[:, queries]
            parts.append(x if keys is None else x[:, :, keys])
        return matrix, magnitude, parts[0], parts[1], parts[2]

    def answer(self, tokens: list[Tensor], mask: tuple[Tensor, Tensor, Tensor]) -> Answer:
        """The plain formula."""
        q, k, v = self.expand(tokens)
        is_key = torch.ones(len(q), 1, 1, k.shape[2], dtype=torch.bool)
        if self.call.padded is not None:
            is_key = is_key & ~self.call.padded[:, None, None]
        call = self.call
        return attend(call.setting, q, k, v, mask, is_key, self.groups, self.precision, call.projection)


def compare_call(case: Case, call: Call, report: Report) -> None:
    """Compare value and gradients of one call."""
    precision = Precision.of(call.q.dtype, case.dtype)
    problem = Problem(case, call, precision)
    matrix, magnitude, *mask = problem.define(problem.leaves)
    answer = problem.answer(problem.tokens, tuple(mask))
    argument = case.plain.argument()
    found = call.run(argument)
    for what, name in (
        ("kernel", "softmax" if call.setting.softmax else f"linear, {call.setting.feature_map}"),
        ("strategy", call.options["strategy"]),
        ("normaliser", call.setting.normalizer),
        ("dtype", str(call.q.dtype)[6:]),
    ):
        report.count(what, name)
    report.calls += 1
    report.queries += answer.compared.numel()
    report.skipped += int((~answer.compared).sum())
    expected, bound = (x.reshape(found.shape) for x in (answer.out, answer.bound))
    if found.dtype != call.q.dtype:
        raise MismatchError(f"the result has dtype {found.dtype}")
    compared = answer.compared.reshape(found.shape[:-1])[..., None]

    def check_value(what: str, found: Tensor) -> None:
        hidden = torch.where(compared, found.detach(), 0.0).to(found.dtype)
        check(what, hidden, torch.where(compared, expected, 0.0), torch.where(compared, bound, 0.0), precision)

    check_value("the result", found)
    _compare_gradients(problem, answer, found, compared, matrix, magnitude, mask[2])
    report.gradients += 1
    if call.mode in ("no_grad", "inference"):
        with torch.inference_mode() if call.mode == "inference" else torch.no_grad():
            for number in range(2):
                check_value(f"the result in mode {call.mode}, time {number}", call.run(case.plain.argument()))


def _compare_gradients(
    problem: Problem,
    answer: Answer,
    found: Tensor,
    compared: Tensor,
    matrix: Tensor,
    magnitude: Tensor,
    error: Tensor,
) -> None:
    call, case, precision = problem.call, problem.case, problem.precision
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(found.shape, dtype=torch.float64, generator=generator).to(found.dtype)
    grad = torch.where(compared, grad, 0.0).to(found.dtype)
    own = case.plain.parameters()
    inputs = [call.q, call.k, call.v, *own.values()]
    got = torch.autograd.grad(found, inputs, grad, allow_unused=True)
    for name, x in zip(("q", "k", "v"), got[:3], strict=True):
        if x is None:
            raise MismatchError(f"there is no gradient in {name}")
    flat = grad.double().reshape(answer.out.shape)
    leaves = [*problem.tokens, *problem.leaves.values()]
    wanted = list(torch.autograd.grad(answer.out, leaves, flat, allow_unused=True, retain_graph=True))
    bounds = bound_gradients(
        call.setting, answer, flat, *problem.expand(problem.tokens), error, call.projection, precision
    )
    for place, (name, bound) in enumerate(zip(("q", "k", "v"), bounds[:3], strict=True)):
        leaf = problem.tokens[place]
        times = bound.shape[1] // leaf.shape[-3]
        bound = bound.unflatten(1, (leaf.shape[-3], times)).sum(dim=2).reshape(leaf.shape)
        expected = torch.zeros_like(leaf) if wanted[place] is None else wanted[place]
        check(f"the gradient in {name}", got[place], expected, bound, precision)
    whole = torch.zeros(bounds.mask.shape[0], *matrix.shape[1:], dtype=torch.float64)
    rows, columns = (
        torch.arange(size) if (nodes := call.options.get(name)) is None else nodes
        for name, size in (("query_nodes", matrix.shape[1]), ("key_nodes", matrix.shape[2]))
    )
    spread = whole.new_zeros(len(whole), len(rows), whole.shape[2]).index_add(2, columns, bounds.mask)
    whole = whole.index_add(1, rows, spread)
    whole = whole.sum(dim=0, keepdim=True) if len(matrix) == 1 else whole
    if own:
        limits = parameter_bounds(case.plain, problem.leaves, matrix, magnitude, whole)
        compare_parameters("the gradient", own, got[3:], tuple(wanted[3:]), limits, precision)
    if call.mode == "differences":
        _compare_differences(problem, flat, wanted)


def _compare_differences(problem: Problem, grad: Tensor, wanted: list[Tensor | None]) -> None:
    """The gradient of the plain formula against central differences: the yardstick is measured too."""
    call = problem.call
    if any(regime != "ordinary" for regime in call.regimes) or problem.case.extreme:
        return
    leaves = [*problem.tokens, *problem.leaves.values()]
    generator = torch.Generator().manual_seed(3)
    # Numbers stay on their side of 0, where absolute values and relu have a kink.
    moves = [torch.randn(x.shape, dtype=torch.float64, generator=generator) * (x.abs() > 10 * STEP) for x in leaves]
    ends = []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            moved = [x + sign * STEP * move for x, move in zip(leaves, moves, strict=True)]
            names = dict(zip(problem.leaves, moved[3:], strict=True))
            out = problem.answer(moved[:3], tuple(problem.define(names)[2:])).out
            ends.append(out)
    terms = [(x * move).sum() for x, move in zip(wanted, moves, strict=True) if x is not None]
    slope, size = sum(terms), sum(x.abs() for x in terms)
    measured = ((ends[0] - ends[1]) * grad).sum() / (2.0 * STEP)
    scale = 1.0 + float(size) + float((grad.abs() * (ends[0].abs() + 1.0)).sum())
    if abs(float(measured) - float(slope)) > DIFFERENCE * scale:
        raise MismatchError(f"YARDSTICK: differences give {float(measured):.9g}, autograd {float(slope):.9g}")
