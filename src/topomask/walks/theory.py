"""Error and sparsity bounds of graph random features; they hold for independent walkers and refuse other couplings."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.support.checks import check_sizes

# Warn if random walk lengths inflate the second moment of the loads by more than this factor.
_VARIANCE_LIMIT = 10.0


def load_constant(
    graph: Graph, f: Tensor, halt_prob: float, normalization: Normalization | None = None, *, telescoped: bool = True
) -> float:
    r"""Return the constant c of Theorem 3.1, a bound on the total load of one walk.

    In general :math:`c = \sum_l |f_l| \big(\max_{ij} \frac{|W_{ij}|}{p_{ij}(1 - p_\text{halt})}\big)^l`. With
    ``telescoped``, the product of :math:`W/p` along a walk is bounded as a whole: under ``"sym"`` by
    :math:`\sqrt{s_i/s_c}`, so :math:`c = |f_0| + \sum_{l \ge 1} |f_l| \sqrt{s_{\max}/s_{\min}} / S(l)` with the largest
    ratio of degrees within a component; under ``"row"`` by 1.

    Args:
        graph: The graph.
        f: Modulation, [L + 1].
        halt_prob: Probability to stop before each step.
        normalization: How W is normalised, see :meth:`topomask.Graph.adjacency`.
        telescoped: Use the tighter constant, which exists for ``"sym"`` and ``"row"``.

    References:
        Reid et al. (2025), Thm 3.1; the telescoped constant is ours.
    """
    normalization = graph.check_normalization(normalization)
    if f.ndim != 1:
        raise ValueError(f"`f` must have shape [L + 1], but has shape {tuple(f.shape)}. Pass the f of one head.")
    weights = f.detach().to("cpu", torch.float64).abs()
    _check_probability("halt_prob", halt_prob, or_zero=True)
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
    r"""Bound the probability that an entry of the mask is off by more than t.

    .. math:: \Pr(|\hat M_{ij} - M_{ij}| > t) \le 2 \exp\Big(-\frac{t^2 n^3}{2 (2n - 1)^2 c^4}\Big)

    References:
        Reid et al. (2025), Eq. 11.
    """
    _check_iid(coupling, "Theorem 3.1")
    _check_bound(num_walks, c)
    return min(1.0, 2.0 * math.exp(-(t**2) * num_walks**3 / (2.0 * (2 * num_walks - 1) ** 2 * c**4)))


def deviation_quantile(probability: float, num_walks: int, c: float, coupling: str = "iid") -> float:
    """Return the deviation t that is exceeded with at most this probability, the inverse of :func:`deviation_bound`."""
    _check_iid(coupling, "Theorem 3.1")
    _check_probability("probability", probability)
    _check_bound(num_walks, c)
    return c**2 * (2 * num_walks - 1) * math.sqrt(2.0 * math.log(2.0 / probability) / num_walks**3)


def required_walks(t: float, probability: float, c: float, coupling: str = "iid") -> int:
    """Return the smallest number of walkers for which :func:`deviation_bound` is at most ``probability``."""
    _check_probability("probability", probability)
    if not t > 0:
        raise ValueError(f"`t` must be positive, but is {t}.")

    def suffices(num_walks: int) -> bool:
        return deviation_bound(t, num_walks, c, coupling) <= probability

    if suffices(1):
        return 1
    # From two walkers on, the bound improves with every walker.
    high = 2
    while not suffices(high):
        high *= 2
    # By hand: `bisect` takes no numbers beyond 2^63.
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def sparsity_bound(
    num_walks: int, halt_prob: float, max_length: int, delta: float = 0.05, coupling: str = "iid"
) -> int:
    r"""Bound the nonzeros of one row of the features, with probability 1 - delta.

    .. math:: n \min(\lfloor b \rfloor, L) + 1, \qquad b = \frac{\log(1 - (1 - \delta)^{1/n})}{\log(1 - p_\text{halt})}

    Walks of fixed length have :math:`b = \infty`: the bound n L + 1 always holds, for every coupling.

    References:
        Reid et al. (2025), Lemma 3.2, extended by the start node and the maximum length.
    """
    _check_probability("halt_prob", halt_prob, or_zero=True)
    _check_probability("delta", delta)
    _check_bound(num_walks, 1.0)
    if halt_prob == 0:
        return num_walks * max_length + 1
    _check_iid(coupling, "Lemma 3.2")
    # Avoids cancellation in 1 - (1 - delta)^(1/n) for many walkers.
    longest = math.log(-math.expm1(math.log1p(-delta) / num_walks)) / math.log1p(-halt_prob)
    return num_walks * min(math.floor(longest), max_length) + 1


def variance_inflation(f: Tensor, halt_prob: float) -> float:
    r"""Return the factor by which random lengths inflate the second moment of the loads.

    .. math:: \sum_k f_k^2 / S(k) \Big/ \sum_k f_k^2, \qquad S(k) = (1 - p_\text{halt})^k

    A walk reaches length k with probability S(k) and then has load 1/S(k).

    Args:
        f: Modulation, [..., L + 1]; the largest factor over the leading dimensions is returned.
        halt_prob: Probability to stop before each step.
    """
    squares = f.detach().to("cpu", torch.float64) ** 2
    survival = (1.0 - halt_prob) ** torch.arange(squares.shape[-1], dtype=torch.float64)
    total = squares.sum(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float(((squares / survival).sum(dim=-1) / total).max())


def warn_if_variance_explodes(f: Tensor, halt_prob: float) -> None:
    """Warn if ``halt_prob`` makes walks too short for the modulation f."""
    inflation = variance_inflation(f, halt_prob)
    if inflation > _VARIANCE_LIMIT:
        warnings.warn(
            f"halt_prob={halt_prob} makes long walks rare, but f gives them a large weight: the second moment of the "
            f"loads, sum f_k^2 / S(k), is {inflation:.3g} times sum f_k^2. Use halt_prob=0 with a smaller max_length, "
            "or let f decay faster.",
            stacklevel=3,
        )


def _largest_telescoped(graph: Graph) -> float:
    """Return the largest square root of a ratio of two degrees within a connected component."""
    joined = graph.degrees > 0
    if not joined.any():
        return 1.0
    count, component = connected_components(graph.to_scipy(), directed=False)
    largest, smallest = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(largest, component[joined], graph.degrees[joined])
    np.minimum.at(smallest, component[joined], graph.degrees[joined])
    return float((np.sqrt(largest) / np.sqrt(smallest)).max())


def _check_probability(name: str, value: float, or_zero: bool = False) -> None:
    if not 0 < value < 1 and not (or_zero and value == 0):
        raise ValueError(f"`{name}` must lie in {'[' if or_zero else '('}0, 1), but is {value}.")


def _check_bound(num_walks: int, c: float) -> None:
    check_sizes(num_walks=num_walks)
    if not 0 < c < math.inf:
        raise ValueError(f"`c` must be positive and finite, but is {c}.")


def _check_iid(coupling: str, result: str) -> None:
    if coupling != "iid":
        raise ValueError(f"{result} needs independent walkers, but `coupling` is {coupling!r}. Pass coupling='iid'.")
