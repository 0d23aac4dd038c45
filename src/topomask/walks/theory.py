r"""How far graph random features can be from the mask they estimate, and how sparse they are.

The bounds hold for independent walkers: they refuse couplings that they do not cover.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from topomask.graph import Graph, Normalization

# How much walks of random length may inflate the second moment of the loads before it is worth a warning.
_VARIANCE_LIMIT = 10.0


def load_constant(
    graph: Graph,
    f: Tensor,
    halt_prob: float,
    normalization: Normalization | None = None,
    *,
    telescoped: bool = True,
) -> float:
    r"""The constant c of Theorem 3.1: a bound on what one walk can leave in total.

    In general :math:`c = \sum_l |f_l| \big(\max_{ij} \frac{|W_{ij}|}{p_{ij}(1 - p_\text{halt})}\big)^l`. With
    ``telescoped``, the product of :math:`W/p` along a walk is bounded as a whole: under ``"sym"`` by
    :math:`\sqrt{s_i/s_c}`, so :math:`c = |f_0| + \sum_{l \ge 1} |f_l| \sqrt{s_{\max}/s_{\min}} / S(l)` with the largest
    ratio of degrees within a component; under ``"row"`` by 1.

    Args:
        graph: The graph.
        f: Modulation, [L + 1].
        halt_prob: Probability to stop before each step.
        normalization: How W is normalised, see :meth:`topomask.Graph.adjacency`.
        telescoped: Use the tighter constant where there is one (``"none"`` has none).

    References:
        Reid et al. (2025), Thm 3.1; the telescoped constant is ours.
    """
    normalization = graph.check_normalization(normalization)
    weights = _check_modulation(f).abs()
    _check_halt_prob(halt_prob)
    lengths = torch.arange(len(weights), dtype=torch.float64)
    if telescoped and normalization != "none":
        largest = _largest_telescoped(graph) if normalization == "sym" else 1.0
        loads = largest / (1.0 - halt_prob) ** lengths
        loads[0] = 1.0
    else:
        adjacency = graph.adjacency(normalization)
        row = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        # W / p = W s_i / a, with s_i the degree of the node that is left.
        ratios = np.abs(adjacency.data) * graph.degrees[row] / np.abs(graph.weights)
        loads = (float(ratios.max(initial=0.0)) / (1.0 - halt_prob)) ** lengths
    return float((weights * loads).sum())


def deviation_bound(t: float, num_walks: int, c: float, coupling: str = "iid") -> float:
    r"""Probability that one entry of the mask is off by more than t, at most.

    .. math:: \Pr(|\hat M_{ij} - M_{ij}| > t) \le 2 \exp\Big(-\frac{t^2 n^3}{2 (2n - 1)^2 c^4}\Big)

    References:
        Reid et al. (2025), Eq. 11.
    """
    _check_iid(coupling, "Theorem 3.1")
    _check_bound(num_walks, c)
    exponent = t**2 * num_walks**3 / (2.0 * (2 * num_walks - 1) ** 2 * c**4)
    return min(1.0, 2.0 * math.exp(-exponent))


def deviation_quantile(probability: float, num_walks: int, c: float, coupling: str = "iid") -> float:
    """The deviation t that is exceeded with at most the given probability: :func:`deviation_bound` solved for t."""
    _check_iid(coupling, "Theorem 3.1")
    _check_probability("probability", probability)
    _check_bound(num_walks, c)
    return c**2 * (2 * num_walks - 1) * math.sqrt(2.0 * math.log(2.0 / probability) / num_walks**3)


def required_walks(t: float, probability: float, c: float, coupling: str = "iid") -> int:
    """The smallest number of walkers for which :func:`deviation_bound` is at most ``probability``.

    The bound gets worse from one walker to two and better from then on, so the search goes upward.
    """
    _check_probability("probability", probability)
    if not t > 0:
        raise ValueError(f"`t` must be positive, but is {t}.")
    if deviation_bound(t, 1, c, coupling) <= probability:
        return 1
    high = 2
    while deviation_bound(t, high, c, coupling) > probability:
        high *= 2
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        if deviation_bound(t, middle, c, coupling) <= probability:
            high = middle
        else:
            low = middle + 1
    return low


def sparsity_bound(
    num_walks: int, halt_prob: float, max_length: int, delta: float = 0.05, coupling: str = "iid"
) -> int:
    r"""Nonzeros of one feature at most, with probability 1 - delta.

    .. math:: n \min(\lfloor b \rfloor, L) + 1, \qquad b = \frac{\log(1 - (1 - \delta)^{1/n})}{\log(1 - p_\text{halt})}

    Walks of fixed length have :math:`b = \infty`: the bound is n L + 1, and holds surely and for every coupling.

    References:
        Reid et al. (2025), Lemma 3.2, with the start node and the cap on the length counted.
    """
    _check_halt_prob(halt_prob)
    _check_probability("delta", delta)
    _check_bound(num_walks, 1.0)
    if halt_prob == 0:
        return num_walks * max_length + 1
    _check_iid(coupling, "Lemma 3.2")
    # 1 - (1 - delta)^(1/n) without cancellation for many walkers.
    longest = math.log(-math.expm1(math.log1p(-delta) / num_walks)) / math.log1p(-halt_prob)
    return num_walks * min(math.floor(longest), max_length) + 1


def variance_inflation(f: Tensor, halt_prob: float) -> float:
    r"""How much random lengths inflate the second moment of the loads: :math:`\sum f_k^2 / S(k) \big/ \sum f_k^2`.

    A walk reaches length k with probability :math:`S(k) = (1 - p_\text{halt})^k` and then counts :math:`1/S(k)`.

    Args:
        f: Modulation, [..., L + 1]; the worst of the leading dimensions is returned.
        halt_prob: Probability to stop before each step.
    """
    squares = f.detach().to("cpu", torch.float64) ** 2
    survival = (1.0 - halt_prob) ** torch.arange(squares.shape[-1], dtype=torch.float64)
    total = squares.sum(dim=-1)
    inflation = (squares / survival).sum(dim=-1) / total.clamp(min=torch.finfo(torch.float64).tiny)
    return float(inflation.max())


def warn_if_variance_explodes(f: Tensor, halt_prob: float) -> None:
    """Warn when walks as short as ``halt_prob`` makes them cannot carry a modulation that reaches as far as f."""
    inflation = variance_inflation(f, halt_prob)
    if inflation > _VARIANCE_LIMIT:
        warnings.warn(
            f"halt_prob={halt_prob} makes long walks rare, but f gives them weight: the second moment of the loads, "
            f"sum f_k^2 / S(k), is {inflation:.3g} times sum f_k^2. Use halt_prob=0 with a smaller max_length, "
            "or let f decay faster.",
            stacklevel=3,
        )


def _largest_telescoped(graph: Graph) -> float:
    """The largest root of a ratio of two degrees within a connected component."""
    joined = graph.degrees > 0
    if not joined.any():
        return 1.0
    count, component = connected_components(graph.to_scipy(), directed=False)
    largest, smallest = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(largest, component[joined], graph.degrees[joined])
    np.minimum.at(smallest, component[joined], graph.degrees[joined])
    return float((np.sqrt(largest) / np.sqrt(smallest)).max())


def _check_modulation(f: Tensor) -> Tensor:
    if f.ndim != 1:
        raise ValueError(
            f"`f` must have shape [L + 1], but has shape {tuple(f.shape)}. Pass the modulation of one head."
        )
    return f.detach().to("cpu", torch.float64)


def _check_halt_prob(halt_prob: float) -> None:
    if not 0 <= halt_prob < 1:
        raise ValueError(f"`halt_prob` must lie in [0, 1), but is {halt_prob}.")


def _check_probability(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must lie in (0, 1), but is {value}.")


def _check_bound(num_walks: int, c: float) -> None:
    if num_walks < 1:
        raise ValueError(f"`num_walks` must be at least 1, but is {num_walks}.")
    if not 0 < c < math.inf:
        raise ValueError(f"`c` must be positive and finite, but is {c}.")


def _check_iid(coupling: str, result: str) -> None:
    if coupling != "iid":
        raise ValueError(
            f"{result} holds for independent walkers, but `coupling` is {coupling!r}. Pass coupling='iid'."
        )
