"""Operations of attention by the number of tokens, in the setting of Fig. 3: a path, 4 i.i.d. walks, halt 0.5."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch

import topomask as tm

WIDTH = 8


def make_mask(num_nodes: int, seed: int) -> tm.WalkMask:
    """The mask of Fig. 3."""
    return tm.WalkMask(tm.path_graph(num_nodes), num_walks=4, halt_prob=0.5, coupling="iid", seed=seed)


def count_flops(num_nodes: int, seeds: Iterable[int] = range(10)) -> dict[str, float]:
    """Multiplications and additions of softmax, linear and masked attention, the last as the mean over seeds.

    Scores and sums count, as each way forms them.
    """
    masked = []
    for seed in seeds:
        mask = make_mask(num_nodes, seed)
        if tm.plan_attention(mask, WIDTH, WIDTH).strategy == "features":
            sides = mask.features if isinstance(mask.features, tuple) else (mask.features,)
            nonzeros = sum(side.num_nonzeros for side in sides)
            masked.append(2.0 * WIDTH * (WIDTH + 1) * (nonzeros + 2 * num_nodes))
        else:
            with torch.no_grad():
                pairs = len(mask.entries().values)
            masked.append(2.0 * pairs * 2 * WIDTH)
    return {
        "softmax": 4.0 * num_nodes**2 * WIDTH,
        "linear": 4.0 * num_nodes * WIDTH * (WIDTH + 1),
        "masked": statistics.mean(masked),
    }
