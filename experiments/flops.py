"""Count the operations of attention by number of tokens, as in Fig. 3: a path, 4 i.i.d. walks, halting at 0.5.

A multiply-add is two operations. The same things are counted for all methods: scores, their product with the mask,
values, the denominator (one more column of values), and the entries of the mask if they are computed. Walks, feature
maps, exponentials and divisions are not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import topomask as tm

WIDTH = 8
# Values, and a column of ones for the denominator.
_COLUMNS = WIDTH + 1
NUM_WALKS = 4
MAX_LENGTH = 10
HALT_PROB = 0.5
NUM_SEEDS = 10
# Increase this when the counting changes, so that earlier results are not shown.
COUNTING = 2


def settings() -> dict[str, Any]:
    """Everything that the results depend on, except the number of tokens, as JSON."""
    return {
        "counting": COUNTING,
        "graph": "path",
        "width": WIDTH,
        "num_walks": NUM_WALKS,
        "max_length": MAX_LENGTH,
        "halt_prob": HALT_PROB,
        "coupling": "iid",
        "seeds": NUM_SEEDS,
    }


def make_mask(num_nodes: int, seed: int) -> tm.WalkMask:
    """The mask of Fig. 3."""
    graph = tm.path_graph(num_nodes)
    return tm.WalkMask(
        graph, num_walks=NUM_WALKS, max_length=MAX_LENGTH, halt_prob=HALT_PROB, coupling="iid", seed=seed
    )


def count_flops(num_nodes: int, seeds: Iterable[int] = range(NUM_SEEDS)) -> dict[str, float]:
    """Count the multiplications and additions of softmax, linear and masked attention.

    Returns:
        ``"softmax"`` and ``"linear"``; and as means over seeds, ``"masked"``, linear attention masked pair by pair,
        and ``"features"``, the same by products with the features of the mask, without computing its entries.
    """
    masks = [make_mask(num_nodes, seed) for seed in seeds]
    return {
        "softmax": 2.0 * num_nodes**2 * (WIDTH + _COLUMNS),
        "linear": 2.0 * 2 * num_nodes * WIDTH * _COLUMNS,
        "masked": statistics.mean(map(count_pairs, masks)),
        "features": statistics.mean(map(count_features, masks)),
    }


def count_pairs(mask: tm.WalkMask) -> float:
    """Count the operations of linear attention over the pairs whose walks meet."""
    scores, masking, values = WIDTH, 1, _COLUMNS
    # An entry of Phi_q Phi_k^T is a sum over the nodes where walks meet.
    operator = mask.on()
    forming = operator.cost().max_pairs
    assert forming is not None
    return 2.0 * (len(operator.entries().pattern.columns) * (scores + masking + values) + forming)


def count_features(mask: tm.WalkMask) -> float:
    """Count the operations of linear attention as Phi_q (Phi_k^T (phi(k) v^T))."""
    # Keys times values, a product with each side of the mask, and queries times the result.
    operator = mask.on()
    return 2.0 * WIDTH * _COLUMNS * (operator.num_keys + operator.cost().product + operator.num_queries)
