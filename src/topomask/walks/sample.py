"""Sampling of random walks, as graph random features or bare."""

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
from topomask.walks.features import WalkFeatures, WalkTensors, Weighting, narrow

Coupling = Literal["repelling", "antithetic", "iid"]
Ensemble = Literal["query", "key"]

# Steps of all walks of a node and head: about 60 MB while they are summed up. Heads of a mask.
_MAX_STEPS, _MAX_HEADS = 1 << 22, 1 << 12
# Nodes that bare walks visit: 16 GB.
_MAX_VISITS = 1 << 31

# Goes up whenever the same seed gives other walks.
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
    r"""Sample random walks from every node and keep what they leave behind.

    .. math:: \mathbb{E}\,\Phi = \sum_{l=0}^{L} f_l W^l, \qquad
        \mathrm{load}_{icl} = \frac{1}{n} \sum_{w=1}^{n} \frac{\prod W/p}{S(l)}\,[\text{walker } w \text{ is at } c
        \text{ after } l \text{ steps}]

    A walker steps from c to j with probability :math:`p_{cj} = |a_{cj}|/s_c` and survives to length l with probability
    :math:`S(l) = (1 - \text{halt\_prob})^l`. It ends at a node without out-edges. The result depends on the seed and
    the graph alone: not on threads, on a batch the graph is part of, or on which start nodes are asked for.

    Args:
        graph: The graph.
        num_walks: Walkers per node and head.
        max_length: Steps of a walk at most.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other. ``"iid"``: not at all. ``"antithetic"``: halting draws
            of walkers 2k and 2k + 1 are half a turn apart. ``"repelling"``: walkers that stand on the same node at the
            same step share one systematic draw, so they spread over its neighbours. Each keeps the law of one walker.
        num_heads: Independent sets of walks.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`Graph.adjacency`.
        weighting: ``"importance"``, the loads above, or ``"visits"``: the share of walkers that are at c after l
            steps, whatever the weights they went along and the probability to get there. Visits estimate no series of
            W, so they take no ``normalization``.
        ensemble: Queries and keys draw independent walks from the same seed.
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
    if weighting not in get_args(Weighting):
        raise ValueError(f"`weighting` must be one of {get_args(Weighting)}, but is {weighting!r}.")
    if weighting == "visits" and normalization is not None:
        raise ValueError(f"`normalization` is {normalization!r}, but visits are not weighted by W. Leave it out.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`dtype` must be torch.float32 or torch.float64, but is {dtype}.")
    nodes = _start_nodes(graph, start_nodes)
    tensors = graph._tensors
    if weighting == "visits":
        # Shares of walkers are the loads for "row", but for signs and the probability to survive.
        normalization, tensors = "row", tensors._replace(signs=None)
    settings = WalkSettings(
        num_walks=int(num_walks),
        max_length=int(max_length),
        halt_prob=float(halt_prob),
        coupling=coupling,
        normalization=graph.check_normalization(normalization),
        seed=int(seed),
        ensemble=get_args(Ensemble).index(ensemble),
        weighting=weighting,
    )
    # Walks are drawn on the CPU whatever the default device is; move them with `to`. They may be trained on later, also
    # when they are drawn in inference mode.
    with plainly(), torch.device("cpu"):
        loads = sample_walks(tensors, nodes, settings, range(num_heads), dtype)
        return WalkFeatures._trusted(
            WalkTensors(loads.row_ptr, loads.columns, narrow(loads.entry_ptr), loads.lengths, loads.loads),
            num_heads=int(num_heads),
            num_columns=graph.num_nodes,
            max_length=int(max_length),
            normalization=settings.normalization,
            weighting=weighting,
        )


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
    """Sample bare random walks: the ones that :func:`sample_features` sums up, for the same arguments.

    Args:
        graph: The graph.
        num_walks: Walkers per node.
        length: Steps of a walk at most.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other, see :func:`sample_features`.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        head: Which of the independent sets of walks.
        ensemble: Queries and keys draw independent walks from the same seed.
        start_nodes: Where walks start, [R]. Default: all nodes.

    Returns:
        Visited nodes [R, num_walks, length + 1], the start first; -1 once a walk has halted or found no way on.

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
            f"The walks would visit {visits:,} nodes, and at most {_MAX_VISITS:,} are returned at once. Pass fewer "
            "`start_nodes` at a time, or fewer walks."
        )
    settings = WalkSettings(
        num_walks=int(num_walks),
        max_length=int(length),
        halt_prob=float(halt_prob),
        coupling=coupling,
        # Where walkers go does not depend on it.
        normalization="row",
        seed=int(seed),
        ensemble=get_args(Ensemble).index(ensemble),
    )
    with plainly(), torch.device("cpu"):
        return sample_bare_walks(graph._tensors, nodes, settings, int(head))


def _start_nodes(graph: Graph, start_nodes: Any) -> Tensor:
    if start_nodes is None:
        return torch.arange(graph.num_nodes, device="cpu")
    return check_nodes(start_nodes, graph.num_nodes, "start_nodes")


def check_sizes(num_walks: int, max_length: int, num_heads: int) -> None:
    """A ValueError unless this many walks of this length can be drawn, and kept in memory."""
    check_integer("num_walks", num_walks, 1)
    check_integer("max_length", max_length, 0, torch.iinfo(torch.int16).max)
    check_integer("num_heads", num_heads, 1, _MAX_HEADS)
    check_steps("max_length", num_walks, max_length)


def check_steps(name: str, num_walks: int, max_length: int) -> None:
    """A ValueError where the walks of a node have more steps than the limit."""
    steps = int(num_walks) * max(1, int(max_length))
    if steps > _MAX_STEPS and steps > (limit := read_limit("TOPOMASK_MAX_WALK_STEPS", _MAX_STEPS)):
        raise ValueError(
            f"`num_walks` times `{name}` asks for {steps:,} steps per node and head, but there are at most {limit:,}. "
            "Walk less; if that many are meant, set the environment variable TOPOMASK_MAX_WALK_STEPS."
        )


def check_draws(halt_prob: float, coupling: str, seed: int, ensemble: str = "query") -> None:
    """A ValueError unless walks can be drawn in this way."""
    check_integer("seed", seed, 0, 2**63 - 1)
    is_number = isinstance(halt_prob, (int, float, np.integer, np.floating)) and not isinstance(halt_prob, bool)
    if not is_number or not 0 <= halt_prob < 1:
        raise ValueError(f"`halt_prob` must lie in [0, 1), but is {halt_prob!r}. Pass 0 for walks of fixed length.")
    if coupling not in get_args(Coupling):
        raise ValueError(f"`coupling` must be one of {get_args(Coupling)}, but is {coupling!r}.")
    if coupling == "antithetic" and halt_prob == 0:
        raise ValueError(
            "`coupling` is 'antithetic', which pairs the halting draws, but `halt_prob` is 0, so it would do nothing. "
            "Pass halt_prob > 0, or coupling='repelling'."
        )
    if ensemble not in get_args(Ensemble):
        raise ValueError(f"`ensemble` must be one of {get_args(Ensemble)}, but is {ensemble!r}.")
