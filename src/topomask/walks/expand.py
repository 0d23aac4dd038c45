"""Features without sampling: rows of powers of W, by frontiers that are expanded and pruned."""

from __future__ import annotations

import math
import warnings
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.graph.input import check_integer, check_nodes, not_a_graph, read_limit, to_numpy
from topomask.ops.derived import plainly
from topomask.ops.expand_frontiers import Edges, Frontiers, FrontierSettings, expand_frontiers
from topomask.support.checks import check_choice
from topomask.walks.certificate import Certificate
from topomask.walks.features import Prune, WalkFeatures, WalkTensors, narrow
from topomask.walks.sample import Ensemble, check_draws, check_sizes

# Increases whenever the same arguments give other features.
EXPANSION_VERSION = 1

# Entries of all frontiers of a node.
_MAX_ENTRIES = 1 << 22
# The weight of a length in the score of a column is this to its power.
_DECAY = 0.8


def expand_features(
    graph: Graph,
    width: int = 16,
    max_length: int = 10,
    *,
    prune: Prune = "largest",
    max_entries: int | None = None,
    length_weights: Any = None,
    tolerance: float | None = None,
    normalization: Normalization | None = None,
    num_heads: int = 1,
    seed: int = 0,
    ensemble: Ensemble = "query",
    start_nodes: Any = None,
) -> WalkFeatures:
    r"""Compute the rows of :math:`W^0, \dots, W^L` step by step, with at most ``width`` entries each.

    .. math:: r_0 = e_i, \qquad r_l = \mathrm{prune}(r_{l-1} W), \qquad \mathrm{load}_{icl} = (r_l)_c

    Without pruning the features are exact. ``prune="largest"`` keeps the largest entries: nothing is random, and the
    error is certified, with :meth:`WalkFeatures.error_bound` as its bound. ``prune="resample"`` thins small entries by
    a draw: large entries stay, the others become zero or a threshold, and all loads are unbiased, also in products of
    independent ensembles for queries and keys.

    .. math:: c_l = \sum_{j \le l} \rho^{l-j} |\delta_j| + |u_l|

    bounds the error of a row of :math:`W^l`: :math:`\delta_j` is what was pruned at step j, :math:`u_l` what is lost
    where columns are cut, and :math:`\rho` is 1 under ``"sym"`` (2-norm) and ``"row"`` (1-norm), and under ``"none"``
    the largest absolute row sum of the graph that a node belongs to (1-norm). For a part of a graph that is the largest
    of the part, which serves as well.

    Rows depend only on the graph and the settings: not on the number of threads, the batch that the graph is part of,
    or other start nodes. Entries whose magnitudes agree in 24 bits are ordered by a hash of node ids, then by ids; the
    hash depends on no seed.

    Args:
        graph: The graph.
        width: Entries of a row of one length at most. A hub, a node with more neighbours, passes on to no more of them:
            the largest, or drawn ones.
        max_length: The largest power L.
        prune: ``"largest"`` or ``"resample"``.
        max_entries: Columns of a row at most, over all lengths. The column of the start node is one of them and is
            always kept. Default: ``width`` for ``"largest"``; ``"resample"`` has no limit, which would bias.
        length_weights: Weights of lengths, [L + 1], not negative: columns with the smallest
            :math:`\sum_l w_l |r_l|` are cut. Default: 0.8^l. The choice of columns hardly depends on it.
        tolerance: For ``"largest"``, the error that a row may have, where ``length_weights`` is the modulation and
            without rounding: as many columns are cut as the bound allows, and no more than ``max_entries`` are left.
            Rows that miss it are counted in a warning and listed in ``WalkFeatures.unreached``.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`Graph.adjacency`.
        num_heads: Independent sets of draws. ``"largest"`` has nothing to draw: its one set serves all heads.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        ensemble: ``"query"`` or ``"key"``, whose draws are independent.
        start_nodes: Which rows to compute, [R]. Default: all nodes.

    Returns:
        Features with loads in float32.

    Example:
        >>> import torch, topomask as tm
        >>> features = tm.expand_features(tm.grid_graph(8, 8), width=12, max_length=4)
        >>> f = 0.5 ** torch.arange(5)
        >>> features.to_dense(f).shape, features.num_nonzeros <= 64 * 12
        (torch.Size([1, 64, 64]), True)
        >>> exact = tm.PowerSeriesMask(tm.grid_graph(8, 8), f).to_dense()
        >>> bool(((features.to_dense(f) - exact)[0].norm(dim=1) <= features.error_bound(f)).all())
        True

    References:
        Fearnhead and Clifford (2003), On-line inference for hidden Markov models via particle filters, for
        ``"resample"``. The certificate is ours.
    """
    if not isinstance(graph, Graph):
        raise not_a_graph(graph)
    check_frontiers(prune, width, max_length, max_entries, length_weights, tolerance)
    check_sizes(1, max_length, num_heads)
    check_draws(0.0, "iid", seed, ensemble)
    if prune == "largest" and num_heads > 1:
        raise ValueError(
            f"`num_heads` is {num_heads}, but prune='largest' draws nothing, so all sets would be equal. Pass "
            "num_heads=1: one set serves all heads."
        )
    nodes = torch.arange(graph.num_nodes, device="cpu")
    if start_nodes is not None:
        nodes = check_nodes(start_nodes, graph.num_nodes, "start_nodes")
    normalization = graph.check_normalization(normalization)
    # No row has more entries than there are nodes.
    width = min(int(width), graph.num_nodes)
    _check_entries(width, int(max_length))
    settings = FrontierSettings(
        width=width,
        max_length=int(max_length),
        prune=prune,
        max_entries=None if prune == "resample" else _entries(max_entries, width, graph.num_nodes),
        length_weights=_weights(length_weights, int(max_length)),
        tolerance=_tolerance(tolerance),
        euclidean=normalization == "sym",
        seed=int(seed),
        ensemble=get_args(Ensemble).index(ensemble),
    )
    # On the CPU whatever the default device is; outside inference mode, since features may be used in training.
    with plainly(), torch.device("cpu"):
        found = expand_frontiers(_edges(graph, normalization), nodes, settings, range(int(num_heads)))
        _check_finite(found, nodes)
        loads = found.loads
        tensors = WalkTensors(loads.row_ptr, loads.columns, narrow(loads.entry_ptr), loads.lengths, loads.loads)
        features = WalkFeatures._trusted(
            _tensors=tensors,
            _certificate=_certificate(found),
            num_heads=int(num_heads),
            num_columns=graph.num_nodes,
            max_length=int(max_length),
            normalization=normalization,
            weighting="importance",
        )
    if len(features.unreached):
        warnings.warn(
            f"{len(features.unreached):,} of {len(nodes):,} rows miss `tolerance` {tolerance}; they are listed in "
            "`features.unreached`. Raise `width`, `max_entries` or `tolerance`.",
            stacklevel=2,
        )
    return features


def check_frontiers(
    prune: Prune,
    width: int,
    max_length: int,
    max_entries: int | None,
    length_weights: Any = None,
    tolerance: float | None = None,
) -> None:
    """Raise a ValueError if frontiers cannot be pruned in this way on any graph."""
    check_choice("prune", prune, get_args(Prune))
    check_integer("width", width, 1)
    check_integer("max_length", max_length, 0)
    if prune == "resample":
        _refuse_cuts(max_entries, length_weights, tolerance)
    elif max_entries is not None:
        check_integer("max_entries", max_entries, 1)


def _edges(graph: Graph, normalization: Normalization) -> Edges:
    """The matrix W of a graph, and the largest growth of an error in one step."""
    tensors = graph._tensors
    values, growth = torch.tensor(graph.weights), torch.ones(graph.num_nodes, dtype=torch.float64)
    if normalization == "none":
        largest = np.zeros(graph.num_graphs)
        np.maximum.at(largest, graph.graph_index, graph.degrees)
        growth = torch.from_numpy(largest[graph.graph_index])
    else:
        degrees = tensors.degrees
        sources = torch.repeat_interleave(degrees, tensors.row_ptr.diff())
        values /= (sources * degrees[tensors.columns]).sqrt() if normalization == "sym" else sources
    if not bool((values.isfinite() & (values != 0)).all()):
        raise ValueError(
            f"Weights of the graph are so large or small that W under '{normalization}' overflows or vanishes. Scale "
            "them, so that degrees are closer to 1."
        )
    return Edges.trusted(
        row_ptr=tensors.row_ptr, columns=tensors.columns, values=values, ids=tensors.ids, growth=growth
    )


def _certificate(found: Frontiers) -> Certificate | None:
    if found.bounds is None or found.unreached is None:
        return None
    # One set of loads serves all heads.
    return Certificate(found.bounds[None], found.unreached[None])


def _check_finite(found: Frontiers, nodes: Tensor) -> None:
    bounds_are_finite = found.bounds is None or bool(found.bounds.isfinite().all())
    if bounds_are_finite and bool(found.loads.loads.isfinite().all()):
        return
    raise ValueError(
        f"Entries of powers of W, or bounds on their errors, overflow in the rows of {len(nodes):,} nodes. Choose a "
        "smaller `max_length` or another `normalization`, or scale the weights down."
    )


def _refuse_cuts(max_entries: int | None, length_weights: Any, tolerance: float | None) -> None:
    """Raise a ValueError for options that would cut columns of resampled rows."""
    given = {"max_entries": max_entries, "length_weights": length_weights, "tolerance": tolerance}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is {value!r}, but prune='resample' cuts no columns, which would bias the features. Omit it, "
                "or pass prune='largest'."
            )


def _check_entries(width: int, max_length: int) -> None:
    """Raise a ValueError if a row may have more entries than the limit."""
    entries = width * max(1, max_length)
    if entries > _MAX_ENTRIES and entries > (limit := read_limit("TOPOMASK_MAX_WALK_STEPS", _MAX_ENTRIES)):
        raise ValueError(
            f"`width` times `max_length` asks for {entries:,} entries per node, but there are at most {limit:,}. "
            "Reduce one; if you do need that many, set the environment variable TOPOMASK_MAX_WALK_STEPS."
        )


def _entries(max_entries: int | None, width: int, num_nodes: int) -> int:
    if max_entries is None:
        return width
    return min(int(max_entries), num_nodes)


def _weights(length_weights: Any, max_length: int) -> tuple[float, ...]:
    """Return a weight per length, or raise a ValueError."""
    if length_weights is None:
        return tuple(_DECAY**length for length in range(max_length + 1))
    weights = to_numpy(length_weights)
    if weights.shape != (max_length + 1,) or weights.dtype.kind not in "iuf":
        raise ValueError(
            f"`length_weights` must be numbers of shape [max_length + 1={max_length + 1}], but has shape "
            f"{weights.shape} and dtype {weights.dtype}. Pass one weight per length from 0 on."
        )
    found = weights.astype(np.float64)
    wrong = ~(np.isfinite(found) & (found >= 0))
    if wrong.any():
        place = int(wrong.argmax())
        raise ValueError(
            f"`length_weights` must be finite and not negative, but length_weights[{place}] is {found[place]}. Pass "
            "absolute values."
        )
    return tuple(found.tolist())


def _tolerance(tolerance: float | None) -> float | None:
    if tolerance is None:
        return None
    is_number = isinstance(tolerance, (int, float, np.integer, np.floating)) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < math.inf:
        raise ValueError(f"`tolerance` must be a finite number of at least 0, but is {tolerance!r}.")
    return float(tolerance)
