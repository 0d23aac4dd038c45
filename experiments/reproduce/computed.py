"""Studies without training: the operations of Fig. 3, and the theorems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import topomask as tm
from experiments import flops
from experiments.estimates import convergence
from topomask.pictures.pages import Section, Table, draw_picture
from topomask.walks import theory

Metrics = dict[str, Any]
# Fig. 3.
TOKENS = tuple(2**exponent for exponent in range(6, 17))
CURVES = {
    "softmax": "softmax",
    "linear": "linear",
    "masked": "linear, masked, pair by pair",
    "features": "linear, masked, by features",
}
# Theorem 3.1.
WALKERS = tuple(2**exponent for exponent in range(2, 11))
GRID = (8, 8)
DECAY = 0.5
MAX_LENGTH = 10
HALT_PROB = 0.1
NUM_SEEDS = 5
# Lemma 3.2: numbers of walkers and their halting probabilities.
SPARSITY_GRID = (32, 32)
SPARSITY = ((4, 0.5), (20, 0.1), (100, 0.1))


@dataclass(frozen=True)
class Computation:
    """A figure or theorem that takes a minute to compute.

    Args:
        compute: Computes the results, as JSON.
        present: Turns the results into a section.
        config: Everything that the results depend on, as JSON; stored results with another config are recomputed.
    """

    compute: Callable[[], Metrics]
    present: Callable[[Metrics], Section]
    config: dict[str, Any]


def fig3() -> Computation:
    """Fig. 3: operations by number of tokens."""
    return Computation(_count, _present_fig3, flops.settings() | {"tokens": list(TOKENS)})


def _count() -> Metrics:
    points = [{"nodes": count} | flops.count_flops(count) for count in TOKENS]
    nodes = np.log([point["nodes"] for point in points])
    # The larger half of the sizes, where constants no longer matter.
    half = len(points) // 2
    slopes = {
        name: float(np.polyfit(nodes[half:], np.log([point[name] for point in points])[half:], 1)[0]) for name in CURVES
    }
    return {"points": points, "slopes": slopes}


def _present_fig3(found: Metrics) -> Section:
    points, slopes = found["points"], found["slopes"]
    rows = [[f"{p['nodes']:,}", *(f"{p[name] / 1e6:.4g}" for name in CURVES)] for p in points]
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    for (name, label), colour in zip(CURVES.items(), ("orange", "gray", "blue", "cyan"), strict=True):
        axes.loglog([p["nodes"] for p in points], [p[name] for p in points], "o-", ms=3, label=label, c=f"tab:{colour}")
    axes.set(xlabel="tokens", ylabel="operations")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    last = points[-1]
    linear = abs(slopes["masked"] - 1.0) < 0.05
    return Section(
        "Fig. 3: operations of attention",
        (
            f"A path, {flops.NUM_WALKS} i.i.d. walks that halt with probability {flops.HALT_PROB}, {flops.WIDTH} "
            f"features, {flops.WIDTH} values; masked attention as the mean of {flops.NUM_SEEDS} seeds: pair by pair, "
            "where walks meet, and by products with the features of the mask. Scores, the mask and its entries, values "
            "and the denominator count in all. The paper's values are in a plot: not available.",
        ),
        Table(["tokens", *(f"{name}, million" for name in ("softmax", "linear", "masked", "by features"))], rows),
        (
            f"Masked attention is O(N) (the paper: so in a plot): {'holds' if linear else 'does not hold'} here, "
            f"the slope on logarithmic axes is {slopes['masked']:.3f}, that of softmax {slopes['softmax']:.3f}.",
            f"A constant factor relative to unmasked linear attention (the paper: above 1, in a plot): "
            f"{last['masked'] / last['linear']:.2f} at {last['nodes']:,} tokens; by features "
            f"{last['features'] / last['linear']:.2f}.",
        ),
        (draw_picture(figure, "Operations against tokens, on logarithmic axes"),),
    )


def theorems() -> Computation:
    """Theorem 3.1 and Lemma 3.2: errors and sparsity, with their bounds."""
    config = {
        "walkers": list(WALKERS),
        "grid": list(GRID),
        "decay": DECAY,
        "max_length": MAX_LENGTH,
        "halt_prob": HALT_PROB,
        "coupling": "iid",
        "seeds": NUM_SEEDS,
        "sparsity_grid": list(SPARSITY_GRID),
        "sparsity": [list(pair) for pair in SPARSITY],
    }
    return Computation(_converge, _present_theory, config)


def _converge() -> Metrics:
    graph, f = tm.grid_graph(*GRID), DECAY ** torch.arange(MAX_LENGTH + 1, dtype=torch.float64)
    found = asdict(convergence(graph, f, list(WALKERS), HALT_PROB, NUM_SEEDS))
    sparsity = []
    for num_walks, halt_prob in SPARSITY:
        features = tm.sample_features(tm.grid_graph(*SPARSITY_GRID), num_walks, MAX_LENGTH, halt_prob, "iid", seed=0)
        measured = float(features.row_ptr.diff().double().quantile(0.95))
        bound = theory.sparsity_bound(num_walks, halt_prob, MAX_LENGTH)
        sparsity.append({"walks": num_walks, "halt": halt_prob, "bound": bound, "measured": measured})
    return found | {"sparsity": sparsity}


def _present_theory(found: Metrics) -> Section:
    columns = (found["num_walks"], found["errors"], found["quantiles"], found["bounds"])
    rows = [[f"{n:,}", f"{e:.4f}", f"{q:.2e}", f"{b:.2e}", f"{b / q:.0f}"] for n, e, q, b in zip(*columns, strict=True)]
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(found["num_walks"], found["bounds"], "--", c="tab:gray", label="Theorem 3.1 allows")
    axes.loglog(found["num_walks"], found["quantiles"], "s-", ms=4, c="tab:orange", label="95 % of entries are within")
    axes.set(xlabel="walkers per node", ylabel="error of an entry")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    below = all(q <= b for q, b in zip(found["quantiles"], found["bounds"], strict=True))
    sparse = all(each["measured"] <= each["bound"] for each in found["sparsity"])
    return Section(
        "Theory: Theorem 3.1 and Lemma 3.2",
        (
            f"I.i.d. walks on a grid of {GRID[0]} x {GRID[1]} that halt with probability {HALT_PROB}, f = {DECAY}^k, "
            f"{NUM_SEEDS} seeds.",
        ),
        Table(["walkers", "relative error", "95 % of entries within", "Theorem 3.1 allows", "times loose"], rows),
        (
            f"Errors fall with the root of the number of walkers: the slope is {found['slope']:.3f}, where -0.5 is "
            f"expected.",
            f"95 % of entries are within the bound of Theorem 3.1: {'holds' if below else 'does not hold'} here.",
            f"Rows are as sparse as Lemma 3.2 says: {'holds' if sparse else 'does not hold'} here, "
            + "; ".join(
                f"{each['walks']} walks, halt {each['halt']}: {each['measured']:.0f} of {each['bound']} allowed"
                for each in found["sparsity"]
            )
            + " (95 % of rows).",
        ),
        (draw_picture(figure, "Error of an entry against walkers, on logarithmic axes"),),
    )
