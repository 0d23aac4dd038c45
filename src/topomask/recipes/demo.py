"""A minute's tour: how good the mask is, what it looks like, and attention on 32,768 tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm
from torch import Tensor
from torch.nn import functional as F

import topomask as tm
from topomask.recipes.estimates import convergence, mask_errors

COLOURS = "YlOrRd"
TOKENS = (128, 256)


def main(output: Path = Path("demo_output")) -> None:
    """Run the tour and write its pictures."""
    output.mkdir(exist_ok=True)
    torch.manual_seed(0)
    print("topomask: which graph do the tokens live on?\n")
    show_error(output / "error.png")
    show_rows(output / "rows.png")
    show_attention(output / "attention.png")
    print(f"\nPictures: {', '.join(sorted(str(path) for path in output.glob('*.png')))}")


def show_error(path: Path) -> None:
    """Mask error against the number of walkers, beside the bound."""
    graph, f = tm.grid_graph(16, 16), 0.5 ** torch.arange(11, dtype=torch.float64)
    counts = [4, 8, 16, 32, 64, 128, 256]
    found = convergence(graph, f, counts, num_seeds=3)
    repelling = [float(np.mean(mask_errors(graph, f, n, range(3)))) for n in counts]

    print("1. Error of the mask on a 16 x 16 grid (relative, Frobenius norm)\n")
    print("   walkers   i.i.d., halt 0.1   repelling (ours)   95 % of entries   Theorem 3.1 allows")
    for row in zip(counts, found.errors, repelling, found.quantiles, found.bounds, strict=True):
        print("   {:7d}   {:16.4f}   {:16.4f}   {:15.4f}   {:18.2f}".format(*row))
    print(f"   slope of i.i.d. walks: {found.slope:.2f} (theory: -0.5)\n")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    left.loglog(counts, found.errors, "o-", color="tab:orange", label="i.i.d. walks, halting 0.1 (the paper's)")
    left.loglog(counts, repelling, "o-", color="tab:blue", label="repelling walks of fixed length (default)")
    left.set(xlabel="walkers per node", ylabel="relative error", title="The whole mask, Frobenius norm")
    right.loglog(counts, found.bounds, "--", color="tab:gray", label="Theorem 3.1 allows")
    right.loglog(counts, found.quantiles, "s-", color="tab:orange", label="95 % of entries are within (i.i.d.)")
    right.set(xlabel="walkers per node", ylabel="absolute error", title="One entry of the mask, and the bound")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def show_rows(path: Path) -> None:
    """One row of the mask, exact and estimated, on a grid and on a kNN graph."""
    points = np.random.default_rng(1).random((600, 2))
    places = np.stack(np.unravel_index(np.arange(17 * 17), (17, 17)), axis=1)[:, ::-1].astype(float)
    cases = [
        ("17 x 17 grid", tm.grid_graph(17, 17), places),
        ("4-NN graph of 600 points", tm.knn_graph(points, 4), points),
    ]
    figure, grid = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
    for axes_row, (name, graph, where) in zip(grid, cases, strict=True):
        node = int(np.argmin(((where - where.mean(axis=0)) ** 2).sum(axis=1)))
        f = 0.8 ** torch.arange(7.0)
        masks = {
            "exact": tm.PowerSeriesMask(graph, tm.convolve(f)),
            "20 repelling walks (default)": tm.WalkMask(graph, 20, 6, f=f, seed=0),
            "20 i.i.d. walks, halting 0.1": tm.WalkMask(graph, 20, 6, f=f, seed=0, coupling="iid", halt_prob=0.1),
        }
        rows = {title: _row(mask, node) for title, mask in masks.items()}
        for axes, (title, values) in zip(axes_row, rows.items(), strict=True):
            _draw(axes, graph, where, values / rows["exact"].max(), node)
            axes.set_title(title, fontsize=10)
        axes_row[0].set_ylabel(name)
    shades = plt.cm.ScalarMappable(norm=PowerNorm(0.5, 0, 1), cmap=COLOURS)
    figure.colorbar(shades, ax=grid, shrink=0.6, label="entry of the mask, relative to the largest")
    figure.suptitle("One row of the mask: how much the marked token attends to the others")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"2. Rows of the mask on a grid and on a kNN graph: see {path}\n")


def _row(mask: tm.Mask, node: int) -> np.ndarray:
    unit = torch.zeros(1, mask.num_queries, 1)
    unit[0, node] = 1.0
    with torch.no_grad():
        return mask.rmatmul(unit)[0, :, 0].numpy()


def _draw(axes: Axes, graph: tm.Graph, places: np.ndarray, values: np.ndarray, node: int) -> None:
    edges = graph.to_edge_index()[0].numpy()
    axes.add_collection(LineCollection(places[edges.T].tolist(), colors="0.8", linewidths=0.6, zorder=0))
    norm = PowerNorm(0.5, 0, 1, clip=True)
    axes.scatter(
        places[:, 0], places[:, 1], c=values, s=22, cmap=COLOURS, norm=norm, zorder=1, edgecolors="0.7", lw=0.3
    )
    axes.scatter(places[node, 0], places[node, 1], s=110, facecolors="none", edgecolors="tab:blue", lw=1.8, zorder=2)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_frame_on(False)


def show_attention(path: Path) -> None:
    """Masked attention on 32,768 tokens beside its exact answer."""
    graph = tm.grid_graph(*TOKENS)
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, 32)
    # The first channel of the values is a noisy picture, so that one can see what attention does to it.
    picture = _picture(*TOKENS).reshape(1, 1, -1, 1)
    v[..., :1] = picture + torch.randn_like(picture)
    mask = tm.WalkMask(graph, num_walks=20, max_length=10, seed=0)
    exact = tm.PowerSeriesMask(graph, tm.convolve(mask.f()[0].detach()))
    with torch.no_grad():
        truth, seconds_exact = _timed(lambda: tm.masked_attention(q, k, v, exact))
        found, seconds = _timed(lambda: tm.masked_attention(q, k, v, mask))
        plain, seconds_plain = _timed(lambda: _linear_attention(q, k, v))
        _, seconds_softmax = _timed(lambda: F.scaled_dot_product_attention(q, k, v))
    error = float((found - truth).norm() / truth.norm())
    size = graph.num_nodes**2 * 4 / 1e9
    plan = tm.plan_attention(mask, 32, 32)

    print(f"3. Attention on {graph.num_nodes:,} tokens of width 32 (a dense mask would take {size:.1f} GB)\n")
    for name, time_taken in (
        ("masked, 20 repelling walks of length 10", seconds),
        ("masked, exact power series", seconds_exact),
        ("unmasked linear attention", seconds_plain),
        ("unmasked softmax attention, O(N^2)", seconds_softmax),
    ):
        print(f"   {name:42s} {time_taken:6.3f} s")
    print(f"   relative error of the masked output: {error:.3f}   (way taken: {plan.strategy})")

    panels = {
        "the picture": picture,
        "values: the picture with noise": v,
        "unmasked linear attention": plain,
        "masked, exact": truth,
        "masked, 20 walks per token": found,
        "error of the 20 walks": found - truth,
    }
    figure, grid = plt.subplots(2, 3, figsize=(11, 4.4), layout="constrained")
    for axes, (title, image) in zip(grid.flat, panels.items(), strict=True):
        shown = axes.imshow(image[0, 0, :, 0].reshape(TOKENS).numpy(), cmap="RdBu", vmin=-1.5, vmax=1.5)
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    figure.colorbar(shown, ax=grid, shrink=0.7)
    figure.suptitle(f"Attention on {graph.num_nodes:,} tokens, first channel (relative error of all: {error:.3f})")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _picture(height: int, width: int) -> Tensor:
    """Two rings and a bar."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-2, 2, width), indexing="ij")
    rings = [(y**2 + (x - centre) ** 2).sqrt() for centre in (-1.0, 0.5)]
    shapes = [(ring > 0.44) & (ring < 0.74) for ring in rings] + [((x - 1.6).abs() < 0.14) & (y.abs() < 0.74)]
    return torch.stack(shapes).any(dim=0).float() * 2.4 - 1.2


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    phi_q, phi_k = F.relu(q), F.relu(k)
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(dim=-2, keepdim=True).mT).clamp(min=1e-9)


def _timed(run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    run()
    start = time.perf_counter()
    out = run()
    return out, time.perf_counter() - start


if __name__ == "__main__":
    main()
