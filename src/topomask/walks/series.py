r"""Power series :math:`M_\alpha = \sum_k \alpha_k W^k` and the modulations behind them.

Functions named after kernels return the coefficients :math:`\alpha_0, \ldots, \alpha_K`, [K + 1], in ``dtype``
(default: torch's default dtype). The kernels are functions of the normalised Laplacian :math:`\tilde L = I - W`, where
W is the ``"sym"`` adjacency. Pass the coefficients to :class:`topomask.PowerSeriesMask`, or convert them with
:func:`deconvolve` for :class:`topomask.WalkMask`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from topomask.graph.input import check_integer


def convolve(f: Tensor, g: Tensor | None = None) -> Tensor:
    r"""Return the series estimated by features with modulations f (queries) and g (keys).

    .. math:: \alpha_k = \sum_{p} f_p\, g_{k-p}, \qquad k = 0, \ldots, 2L

    Args:
        f: Modulation, [..., L + 1].
        g: Modulation of the keys, same shape. Default: f, as in symmetric features.

    Returns:
        Coefficients, [..., 2 L + 1].

    Example:
        >>> convolve(torch.tensor([1.0, 0.5]))
        tensor([1.0000, 1.0000, 0.2500])

    References:
        Reid et al. (2025), Remark 3.1 and Eq. 23.
    """
    f = torch.as_tensor(f)
    g = f if g is None else torch.as_tensor(g)
    if f.shape != g.shape or f.ndim == 0:
        raise ValueError(
            f"`f` and `g` must have the same shape [..., L + 1], but have {tuple(f.shape)} and {tuple(g.shape)}."
        )
    length = f.shape[-1]
    outer = f.unsqueeze(-1) * g.unsqueeze(-2)  # [..., L + 1, L + 1]
    places = (torch.arange(length)[:, None] + torch.arange(length)).flatten().to(f.device)
    return f.new_zeros(*f.shape[:-1], 2 * length - 1).index_add(-1, places, outer.flatten(-2))


def deconvolve(alpha: Tensor) -> Tensor:
    r"""Return the modulation whose convolution with itself starts with ``alpha``; differentiable.

    .. math:: \sum_{p=0}^{k} f_p f_{k-p} = \alpha_k, \qquad k = 0, \ldots, L

    Features with this f also include the terms L + 1 to 2 L of :func:`convolve`.

    Args:
        alpha: Coefficients, [..., L + 1], with alpha[..., 0] > 0.

    Returns:
        Modulation with f[..., 0] > 0, same shape.

    Example:
        >>> deconvolve(torch.tensor([1.0, 1.0, 0.25]))
        tensor([1.0000, 0.5000, 0.0000])

    References:
        Reid et al. (2025), Remark 3.1.
    """
    alpha = torch.as_tensor(alpha)
    if alpha.ndim == 0 or not alpha.shape[-1]:
        raise ValueError(f"`alpha` must have shape [..., L + 1], but has shape {tuple(alpha.shape)}.")
    if not bool((alpha[..., 0] > 0).all()):
        raise ValueError(
            f"`alpha` must have alpha_0 > 0, or it is not the square of another series, but alpha_0 is "
            f"{alpha[..., 0].tolist()}."
        )
    f = [alpha[..., 0].sqrt()]
    for k in range(1, alpha.shape[-1]):
        crossed = [f[p] * f[k - p] for p in range(1, k)]
        inner = torch.stack(crossed).sum(dim=0) if crossed else torch.zeros_like(f[0])
        f.append((alpha[..., k] - inner) / (2 * f[0]))
    return torch.stack(f, dim=-1)


def heat(order: int, time: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    r"""Heat (diffusion) kernel :math:`\exp(-t \tilde L)`: :math:`\alpha_k = e^{-t} t^k / k!`."""
    _check_positive(time=time)
    # Sum logarithms, because exp(-t) underflows beyond t = 745.
    terms = [math.exp(-time + k * math.log(time) - math.lgamma(k + 1)) for k in _powers(order)]
    return _coefficients(terms, dtype)


def regularized_laplacian(order: int, sigma: float = 1.0, power: int = 1, dtype: torch.dtype | None = None) -> Tensor:
    r"""Regularised Laplacian :math:`(I + \sigma^2 \tilde L)^{-d}` with d = ``power``.

    .. math:: \alpha_k = (1 + \sigma^2)^{-d} \binom{d + k - 1}{k} \Big(\frac{\sigma^2}{1 + \sigma^2}\Big)^k
    """
    _check_positive(sigma=sigma, power=power)
    return _coefficients(_binomial_series(order, power, 1.0 + sigma**2, sigma**2 / (1.0 + sigma**2)), dtype)


def matern(order: int, nu: float = 1.5, kappa: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    r"""Matérn-like kernel :math:`(2\nu/\kappa^2 + \tilde L)^{-\nu}` of smoothness nu > 0 and length scale kappa > 0.

    .. math:: \alpha_k = (1 + c)^{-\nu - k}\,\frac{\Gamma(\nu + k)}{\Gamma(\nu)\,k!}, \qquad c = 2\nu/\kappa^2

    References:
        Borovitskiy et al. (2021), Matérn Gaussian processes on graphs.
    """
    _check_positive(nu=nu, kappa=kappa)
    shift = 1.0 + 2.0 * nu / kappa**2
    return _coefficients(_binomial_series(order, nu, shift, 1.0 / shift), dtype)


def random_walk(order: int, steps: int = 2, shift: float = 2.0, dtype: torch.dtype | None = None) -> Tensor:
    r"""p-step random walk :math:`(a I - \tilde L)^p = ((a - 1) I + W)^p` with p = ``steps`` and a = ``shift`` >= 2.

    .. math:: \alpha_k = \binom{p}{k} (a - 1)^{p - k} \quad (k \le p)
    """
    check_integer("steps", steps, 1)
    if not shift >= 2:
        raise ValueError(f"`shift` must be at least 2 for a positive kernel, but is {shift}.")
    return _coefficients([math.comb(steps, k) * (shift - 1.0) ** max(steps - k, 0) for k in _powers(order)], dtype)


def cosine(order: int, frequency: float = math.pi / 4, dtype: torch.dtype | None = None) -> Tensor:
    r"""Cosine kernel :math:`\cos(\theta W)`, 0 < theta <= pi/2: :math:`\alpha_{2k} = (-1)^k \theta^{2k} / (2k)!`."""
    if not 0 < frequency <= math.pi / 2:
        raise ValueError(f"`frequency` must lie in (0, pi/2] for a positive kernel, but is {frequency}.")
    signs = (1.0, 0.0, -1.0, 0.0)
    return _coefficients([signs[k % 4] * _taylor(frequency, k) for k in _powers(order)], dtype)


def inverse_cosine(order: int, dtype: torch.dtype | None = None) -> Tensor:
    r"""Inverse cosine kernel :math:`\cos(\tilde L\,\pi/4)`, named after its regulariser :math:`1/\cos(\lambda\pi/4)`.

    .. math:: \alpha_k = \tfrac{1}{\sqrt 2}\,\sigma_k\,(\pi/4)^k / k!, \qquad \sigma = +, +, -, -, +, \ldots

    References:
        Smola and Kondor (2003), Kernels and regularization on graphs.
    """
    signs = (1.0, 1.0, -1.0, -1.0)
    return _coefficients([signs[k % 4] * _taylor(math.pi / 4, k) / math.sqrt(2.0) for k in _powers(order)], dtype)


def _taylor(x: float, k: int) -> float:
    """x**k / k! without large intermediates."""
    return math.exp(k * math.log(x) - math.lgamma(k + 1))


def _binomial_series(order: int, power: float, base: float, ratio: float) -> list[float]:
    """base**-power * (1 - ratio W)**-power."""
    terms = [base**-power]
    for k in _powers(order)[1:]:
        terms.append(terms[-1] * ratio * (power + k - 1) / k)
    return terms


def _powers(order: int) -> range:
    check_integer("order", order, 0)
    return range(order + 1)


def _coefficients(terms: list[float], dtype: torch.dtype | None) -> Tensor:
    return torch.tensor(terms, dtype=torch.get_default_dtype() if dtype is None else dtype)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, but is {value}.")
