import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from topomask.walks import series

ORDER = 40


def tensor(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))


@pytest.mark.parametrize(
    ("alpha", "f"),
    [
        ([1 / math.factorial(k) for k in range(12)], [1 / (2**k * math.factorial(k)) for k in range(12)]),
        ([1.0] * 12, [double_factorial(2 * k - 1) / double_factorial(2 * k) for k in range(12)]),
        ([k + 1.0 for k in range(12)], [1.0] * 12),
    ],
    ids=["exp(W)", "(I - W)^-1", "(I - W)^-2"],
)
def test_deconvolution_has_the_closed_form(alpha, f):
    torch.testing.assert_close(series.deconvolve(tensor(alpha)), tensor(f), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(series.convolve(tensor(f))[:12], tensor(alpha), rtol=1e-12, atol=1e-15)


def test_convolve_is_polynomial_multiplication():
    f, g = torch.randn(2, 3, 5, dtype=torch.float64)
    for a, b, c in zip(f, g, series.convolve(f, g), strict=True):
        torch.testing.assert_close(c, torch.from_numpy(np.convolve(a, b)))
    with pytest.raises(ValueError, match="same shape"):
        series.convolve(f, g[:, :2])


def test_convolution_and_deconvolution_are_differentiable():
    f = torch.tensor([[1.0, 0.5, -0.3], [0.7, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(series.convolve, f)
    assert gradcheck(series.deconvolve, f)


def test_deconvolve_needs_a_positive_start():
    for first in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="alpha_0"):
            series.deconvolve(tensor([first, 1.0]))


def test_long_series_do_not_overflow():
    assert series.heat(400, dtype=torch.float64).sum() == pytest.approx(1.0)
    assert series.heat(2000, time=800.0, dtype=torch.float64).sum() == pytest.approx(1.0)
    assert series.cosine(400).isfinite().all()
    assert series.heat(3).dtype == torch.get_default_dtype()


def laplacian() -> torch.Tensor:
    w = torch.from_numpy(tm.grid_graph(3, 3).adjacency("sym").toarray())
    return torch.eye(9, dtype=torch.float64) - w


def spectral(function) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(laplacian())
    return (vectors * function(values)) @ vectors.mT


@pytest.mark.parametrize(
    ("coefficients", "function"),
    [
        (series.heat(ORDER, time=1.7, dtype=torch.float64), lambda x: torch.exp(-1.7 * x)),
        (series.regularized_laplacian(400, sigma=0.8, power=2, dtype=torch.float64), lambda x: (1 + 0.64 * x) ** -2),
        (series.matern(400, nu=1.3, kappa=0.9, dtype=torch.float64), lambda x: (2.6 / 0.81 + x) ** -1.3),
        (series.random_walk(5, steps=3, shift=2.5, dtype=torch.float64), lambda x: (2.5 - x) ** 3),
        (series.cosine(ORDER, frequency=1.2, dtype=torch.float64), lambda x: torch.cos(1.2 * (1 - x))),
        (series.inverse_cosine(ORDER, dtype=torch.float64), lambda x: torch.cos(math.pi / 4 * x)),
    ],
    ids=["heat", "regularized_laplacian", "matern", "random_walk", "cosine", "inverse_cosine"],
)
def test_kernels_are_the_functions_they_name(coefficients, function):
    mask = tm.PowerSeriesMask(tm.grid_graph(3, 3), coefficients)
    torch.testing.assert_close(mask.to_dense()[0].detach(), spectral(function), rtol=1e-10, atol=1e-10)
    assert (torch.linalg.eigvalsh(mask.to_dense()[0]) > -1e-10).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: series.heat(3, time=0.0),
        lambda: series.matern(3, nu=-1.0),
        lambda: series.random_walk(3, shift=1.0),
        lambda: series.random_walk(3, steps=2.5),
        lambda: series.heat(-1),
        lambda: series.deconvolve(torch.tensor(1.0)),
        lambda: series.cosine(3, frequency=2.0),
        lambda: series.regularized_laplacian(3, sigma=math.inf),
    ],
)
def test_kernels_refuse_bad_parameters(call):
    with pytest.raises(ValueError, match="must"):
        call()
