"""Operations of attention by the number of tokens, in the setting of Fig. 3: a path, 4 i.i.d. walks, halt 0.5.

A multiply-add is two operations. Every way counts the same: scores, their multiplication by the mask, values, the
denominator, which is one more column of values, and the entries of the mask where they are formed. No way counts walks,
feature maps, exponentials and divisions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import topomask as tm

WIDTH = 8
# Values, and ones for the denominator.
_COLUMNS = WIDTH + 1
NUM_WALKS = 4
MAX_LENGTH = 10
HALT_PROB = 0.5
NUM_SEEDS = 10
# To be raised whenever something else counts, so that no result of the former way to count is shown.
COUNTING = 2


def settings() -> dict[str, Any]:
    """All that decides the numbers, the tokens aside, as JSON."""
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
    return tm.WalkMask(graph, NUM_WALKS, MAX_LENGTH, halt_prob=HALT_PROB, coupling="iid", seed=seed)


def count_flops(num_nodes: int, seeds: Iterable[int] = range(NUM_SEEDS)) -> dict[str, float]:
    """Multiplications and additions of softmax, linear and masked attention.

    Returns:
        ``"softmax"`` and ``"linear"``; and as means over seeds, ``"masked"``, which is linear attention masked pair by
        pair, and ``"features"``, the same by products with the features of the mask, whose entries are never formed.
    """
    masks = [make_mask(num_nodes, seed) for seed in seeds]
    return {
        "softmax": 2.0 * num_nodes**2 * (WIDTH + _COLUMNS),
        "linear": 2.0 * 2 * num_nodes * WIDTH * _COLUMNS,
        "masked": statistics.mean(map(count_pairs, masks)),
        "features": statistics.mean(map(count_features, masks)),
    }


def count_pairs(mask: tm.WalkMask) -> float:
    """Operations of linear attention pair by pair, where walks of a query and a key meet."""
    scores, masking, values = WIDTH, 1, _COLUMNS
    # An entry of Phi_q Phi_k^T is a sum over the nodes where walks meet.
    operator = mask.on()
    forming = operator.cost().max_pairs
    assert forming is not None
    return 2.0 * (len(operator.entries().pattern.columns) * (scores + masking + values) + forming)


def count_features(mask: tm.WalkMask) -> float:
    """Operations of linear attention by Phi_q (Phi_k^T (phi(k) v^T))."""
    # Keys with values, the product with either side of the mask, then queries with that.
    operator = mask.on()
    return 2.0 * WIDTH * _COLUMNS * (operator.num_keys + operator.cost().product + operator.num_queries)
