"""Sampling of random walks, as graph random features or as node sequences."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.graph.input import check_integer, check_nodes, read_limit
from topomask.ops.derived import plainly
from topomask.ops.sample_walks import WalkSettings, sample_walks
from topomask.ops.sample_walks import random_walks as sample_bare_walks
from topomask.support.checks import check_choice
from topomask.walks.features import WalkFeatures, WalkTensors, Weighting, narrow

Coupling = Literal["repelling", "antithetic", "iid"]
Ensemble = Literal["query", "key"]

# Steps of all walks of a node and head, about 60 MB while they are summed; heads of a mask.
_MAX_STEPS, _MAX_HEADS = 1 << 22, 1 << 12
# Nodes in the result of random_walks: 16 GB.
_MAX_VISITS = 1 << 31

# Increases whenever the same seed gives different walks.
SAMPLER_VERSION = 1


def sample_features(
    graph: Graph,
    num_walks: int = 20,
    max_length: int = 10,
    halt_prob: float = 0.0,
    coupling: Coupling = "repelling",
    num_heads: int = 1,
    seed: int = 0,
    *,
    normalization: Normalization | None = None,
    weighting: Weighting = "importance",
    ensemble: Ensemble = "query",
    start_nodes: Any = None,
    dtype: torch.dtype = torch.float32,
) -> WalkFeatures:
    r"""Sample random walks from every node and accumulate their loads.

    .. math:: \mathbb{E}\,\Phi = \sum_{l=0}^{L} f_l W^l, \qquad
        \mathrm{load}_{icl} = \frac{1}{n} \sum_{w=1}^{n} \frac{\prod W/p}{S(l)}\,[\text{walker } w \text{ is at } c
        \text{ after } l \text{ steps}]

    A walker steps from c to j with probability :math:`p_{cj} = |a_{cj}|/s_c` and survives to length l with probability
    :math:`S(l) = (1 - \text{halt\_prob})^l`. It ends at a node without out-edges. The walks of a node depend
    only on graph and seed: not on the number of threads, the batch that the graph is part of, or other start nodes.

    Args:
        graph: The graph.
        num_walks: Walkers per node and head.
        max_length: Maximum number of steps of a walk.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other. ``"iid"``: not at all. ``"antithetic"``: walkers 2k and
            2k + 1 use halting draws u and u + 1/2 mod 1. ``"repelling"``: walkers on the same node at the same step
            share one systematic draw, so they spread over its neighbours. The law of a single walker never changes.
        num_heads: Independent sets of walks.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`Graph.adjacency`.
        weighting: ``"importance"`` for the loads above, or ``"visits"`` for the fraction of walkers that are at c after
            l steps, without importance weights. Visits do not estimate a series of W and take no ``normalization``.
        ensemble: ``"query"`` or ``"key"``; the two draw independent walks from the same seed.
        start_nodes: Which rows to sample, [R]. Default: all nodes.
        dtype: Precision of the loads, float32 or float64.

    Example:
        >>> import torch, topomask as tm
        >>> features = tm.sample_features(tm.grid_graph(4, 4), num_walks=8, max_length=3)
        >>> features.to_dense(torch.tensor([1.0, 0.5, 0.25, 0.125])).shape
        torch.Size([1, 16, 16])

    References:
        Reid et al. (2025), Eq. 10; the telescoped loads are ours.
    """
    check_sizes(num_walks, max_length, num_heads)
    check_draws(halt_prob, coupling, seed, ensemble)
    check_choice("weighting", weighting, get_args(Weighting))
    if weighting == "visits" and normalization is not None:
        raise ValueError(f"`normalization` is {normalization!r}, but visits are not weighted by W. Omit it.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`dtype` must be torch.float32 or torch.float64, but is {dtype}.")
    nodes = _start_nodes(graph, start_nodes)
    tensors = graph._tensors
    if weighting == "visits":
        # Up to signs and survival probabilities, the loads under "row" are fractions of walkers.
        normalization, tensors = "row", tensors._replace(signs=None)
    normalization = graph.check_normalization(normalization)
    numbers, which = (int(num_walks), int(max_length), float(halt_prob)), get_args(Ensemble).index(ensemble)
    settings = WalkSettings(*numbers, coupling, normalization, int(seed), which, weighting)
    # On the CPU whatever the default device is; outside inference mode, since the walks may be used in training.
    with plainly(), torch.device("cpu"):
        loads = sample_walks(tensors, nodes, settings, range(num_heads), dtype)
        sampled = WalkTensors(loads.row_ptr, loads.columns, narrow(loads.entry_ptr), loads.lengths, loads.loads)
        sizes = {"num_heads": int(num_heads), "num_columns": graph.num_nodes, "max_length": int(max_length)}
        return WalkFeatures._trusted(_tensors=sampled, **sizes, normalization=normalization, weighting=weighting)


def random_walks(
    graph: Graph,
    num_walks: int = 1,
    length: int = 10,
    *,
    halt_prob: float = 0.0,
    coupling: Coupling = "iid",
    seed: int = 0,
    head: int = 0,
    ensemble: Ensemble = "query",
    start_nodes: Any = None,
) -> Tensor:
    """Sample random walks as node sequences: those that :func:`sample_features` sums for the same arguments.

    Args:
        graph: The graph.
        num_walks: Walkers per node.
        length: Maximum number of steps of a walk.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other, see :func:`sample_features`.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        head: Index of the independent set of walks.
        ensemble: ``"query"`` or ``"key"``; the two draw independent walks from the same seed.
        start_nodes: Where walks start, [R]. Default: all nodes.

    Returns:
        Visited nodes, [R, num_walks, length + 1], starting with the start node; -1 after the end of a walk.

    Example:
        >>> import topomask as tm
        >>> tm.random_walks(tm.Graph.from_edges([(0, 1), (1, 2)], directed=True), length=3)[:, 0]
        tensor([[ 0,  1,  2, -1],
                [ 1,  2, -1, -1],
                [ 2, -1, -1, -1]])
    """
    check_integer("num_walks", num_walks, 1)
    check_integer("length", length, 0)
    check_steps("length", num_walks, length)
    check_integer("head", head, 0, 2**63 - 1)
    check_draws(halt_prob, coupling, seed, ensemble)
    nodes = _start_nodes(graph, start_nodes)
    visits = len(nodes) * int(num_walks) * (int(length) + 1)
    if visits > _MAX_VISITS:
        raise ValueError(
            f"The walks would visit {visits:,} nodes, but at most {_MAX_VISITS:,} can be returned at once. Pass fewer "
            "`start_nodes` per call, or fewer walks."
        )
    numbers, which = (int(num_walks), int(length), float(halt_prob)), get_args(Ensemble).index(ensemble)
    # Walkers move in the same way under every normalisation.
    settings = WalkSettings(*numbers, coupling, "row", int(seed), which)
    with plainly(), torch.device("cpu"):
        return sample_bare_walks(graph._tensors, nodes, settings, int(head))


def _start_nodes(graph: Graph, start_nodes: Any) -> Tensor:
    if start_nodes is None:
        return torch.arange(graph.num_nodes, device="cpu")
    return check_nodes(start_nodes, graph.num_nodes, "start_nodes")


def check_sizes(num_walks: int, max_length: int, num_heads: int) -> None:
    """Raise a ValueError unless this many walks of this length can be drawn and stored."""
    check_integer("num_walks", num_walks, 1)
    check_integer("max_length", max_length, 0, torch.iinfo(torch.int16).max)
    check_integer("num_heads", num_heads, 1, _MAX_HEADS)
    check_steps("max_length", num_walks, max_length)


def check_steps(name: str, num_walks: int, max_length: int) -> None:
    """Raise a ValueError if the walks of a node have more steps than the limit."""
    steps = int(num_walks) * max(1, int(max_length))
    if steps > _MAX_STEPS and steps > (limit := read_limit("TOPOMASK_MAX_WALK_STEPS", _MAX_STEPS)):
        raise ValueError(
            f"`num_walks` times `{name}` asks for {steps:,} steps per node and head, but there are at most {limit:,}. "
            "Reduce one; if you do need that many, set the environment variable TOPOMASK_MAX_WALK_STEPS."
        )


def check_draws(halt_prob: float, coupling: str, seed: int, ensemble: str = "query") -> None:
    """Raise a ValueError unless walks can be drawn with these settings."""
    check_integer("seed", seed, 0, 2**63 - 1)
    is_number = isinstance(halt_prob, (int, float, np.integer, np.floating)) and not isinstance(halt_prob, bool)
    if not is_number or not 0 <= halt_prob < 1:
        raise ValueError(f"`halt_prob` must lie in [0, 1), but is {halt_prob!r}. Pass 0 for walks of fixed length.")
    check_choice("coupling", coupling, get_args(Coupling))
    check_choice("ensemble", ensemble, get_args(Ensemble))
    if coupling == "antithetic" and halt_prob == 0:
        raise ValueError(
            "`coupling` is 'antithetic', which pairs halting draws, but `halt_prob` is 0, so it would do nothing. Pass "
            "halt_prob > 0 or coupling='repelling'."
        )
