"""A tour: error and pictures of the mask, attention on 32,768 tokens, and what a transformer gains from the mask."""

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
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

import topomask as tm
from experiments.demo_training import show_training
from experiments.estimates import convergence, mask_errors
from topomask.pictures.pages import Picture, Section, Table, draw_picture, to_html, to_text
from topomask.support.files import write_content

COLOURS = "YlOrRd"
TOKENS = (128, 256)


def main(output: Path = Path("demo_output")) -> None:
    """Run the tour, and write a report with pictures."""
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    print("topomask: which graph do the tokens live on?\n")
    sections = []
    for part in (show_error, show_rows, show_attention, show_training):
        section = part(output)
        sections.append(section)
        print(to_text(section), flush=True)
    page = to_html("topomask: which graph do the tokens live on?", sections)
    write_content(output / "report.html", page.encode())
    print(f"Everything on one page: {output / 'report.html'}")


def show_error(output: Path) -> Section:
    """Plot the mask error against the number of walkers, with the bound."""
    graph, f = tm.grid_graph(16, 16), 0.5 ** torch.arange(11, dtype=torch.float64)
    counts = [4, 8, 16, 32, 64, 128, 256]
    found = convergence(graph, f, counts, num_seeds=3)
    repelling = [float(np.mean(mask_errors(graph, f, n, range(3)))) for n in counts]

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
    rows = zip(counts, found.errors, repelling, found.quantiles, found.bounds, strict=True)
    headings = ["walkers", "i.i.d., halt 0.1", "repelling (ours)", "95 % of entries within", "Theorem 3.1 allows"]
    return Section(
        "1. How good is the mask?",
        ("Relative error on a 16 x 16 grid, Frobenius norm; the last two columns are about single entries.",),
        Table(headings, [[f"{row[0]}", *(f"{value:.4f}" for value in row[1:])] for row in rows]),
        (f"Slope of i.i.d. walks: {found.slope:.2f} (theory: -0.5).",),
        (_keep(figure, output / "error.png", "Error against walkers"),),
    )


def show_rows(output: Path) -> Section:
    """Draw one row of the mask, exact and estimated, on a grid and on a kNN graph."""
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
            "20 repelling walks (default)": tm.WalkMask(graph, num_walks=20, max_length=6, f=f, seed=0),
            "20 i.i.d. walks, halting 0.1": tm.WalkMask(
                graph, num_walks=20, max_length=6, f=f, seed=0, coupling="iid", halt_prob=0.1
            ),
        }
        rows = {title: _row(mask, node) for title, mask in masks.items()}
        for axes, (title, values) in zip(axes_row, rows.items(), strict=True):
            _draw(axes, graph, where, values / rows["exact"].max(), node)
            axes.set_title(title, fontsize=10)
        axes_row[0].set_ylabel(name)
    shades = plt.cm.ScalarMappable(norm=PowerNorm(0.5, 0, 1), cmap=COLOURS)
    figure.colorbar(shades, ax=grid, shrink=0.6, label="entry of the mask, relative to the largest")
    figure.suptitle("One row of the mask: how much the marked token attends to the others")
    return Section(
        "2. What does it look like?",
        ("One row of the mask on a grid and on a kNN graph, exact and by 20 walks per token.",),
        notes=(f"See {output / 'rows.png'}.",),
        pictures=(_keep(figure, output / "rows.png", "Rows of the mask on a grid and on a kNN graph"),),
    )


def _row(mask: tm.Mask, node: int) -> np.ndarray:
    with torch.no_grad():
        return mask.on().submatrix(torch.tensor([node]), None)[0, 0].numpy()


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


def show_attention(output: Path) -> Section:
    """Compare masked attention on 32,768 tokens with the exact result."""
    graph = tm.grid_graph(*TOKENS)
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, 32)
    # The first channel of the values is a noisy picture, so that the effect of attention is visible.
    picture = _picture(*TOKENS).reshape(1, 1, -1, 1)
    v[..., :1] = picture + torch.randn_like(picture)
    mask = tm.WalkMask(graph, num_walks=20, max_length=10, seed=0)
    exact = tm.PowerSeriesMask(graph, tm.convolve(mask.f[0].detach()))
    with torch.no_grad():
        truth, seconds_exact = _timed(lambda: tm.masked_attention(q, k, v, exact))
        found, seconds = _timed(lambda: tm.masked_attention(q, k, v, mask))
        plain, seconds_plain = _timed(lambda: _linear_attention(q, k, v))
        _, seconds_softmax = _timed(lambda: F.scaled_dot_product_attention(q, k, v))
    error = float((found - truth).norm() / truth.norm())
    size = graph.num_nodes**2 * 4 / 1e9
    plan = tm.plan_attention(mask, 32, 32)

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
    rows = [
        ["masked, 20 repelling walks of length 10", f"{seconds:.3f}"],
        ["masked, exact power series", f"{seconds_exact:.3f}"],
        ["unmasked linear attention", f"{seconds_plain:.3f}"],
        ["unmasked softmax attention, O(N^2)", f"{seconds_softmax:.3f}"],
    ]
    return Section(
        f"3. Attention on {graph.num_nodes:,} tokens",
        (f"Width 32; a dense mask would take {size:.1f} GB.",),
        Table(["", "seconds"], rows),
        (f"Relative error of the masked output: {error:.3f} (strategy: {plan.strategy}).",),
        (_keep(figure, output / "attention.png", "What attention makes of a noisy picture"),),
    )


def _keep(figure: Figure, path: Path, about: str) -> Picture:
    """Save the figure to a file, and return it as a picture for the report."""
    picture = draw_picture(figure, about, width=900)
    write_content(path, picture.png)
    plt.close(figure)
    return picture


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
