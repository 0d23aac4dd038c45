"""Error of i.i.d. walks against the number of walkers, on logarithmic axes, with the bound of Theorem 3.1."""

from __future__ import annotations

from dataclasses import asdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import topomask as tm
from benchmarks import report
from experiments.estimates import convergence
from topomask.walks import theory


def main() -> None:
    graph, f = tm.grid_graph(8, 8), 0.5 ** torch.arange(11, dtype=torch.float64)
    result = convergence(graph, f, [2**k for k in range(2, 11)])
    rows = [
        [str(n), f"{e:.4f}", f"{q:.2e}", f"{b:.2e}", f"{b / q:.0f}"]
        for n, e, q, b in zip(result.num_walks, result.errors, result.quantiles, result.bounds, strict=True)
    ]
    report.table(["walkers", "relative error", "95 % of entries within", "Thm 3.1 allows", "times loose"], rows)
    general = theory.load_constant(graph, f, 0.1, telescoped=False)
    telescoped = theory.load_constant(graph, f, 0.1)
    print(f"slope {result.slope:.3f}; constant c: general {general:.3f}, telescoped {telescoped:.3f}")
    sparsity = _sparsity()
    report.table(["walkers", "halt", "Lemma 3.2 (95 %)", "measured 95 %", "times loose"], sparsity)
    report.save("convergence", asdict(result) | {"sparsity": sparsity})
    _plot(result)


def _sparsity() -> list[list[str]]:
    rows = []
    for num_walks, halt_prob in ((4, 0.5), (20, 0.1), (100, 0.1)):
        features = tm.sample_features(tm.grid_graph(32, 32), num_walks, 10, halt_prob, "iid")
        measured = float(features.row_ptr.diff().double().quantile(0.95))
        bound = theory.sparsity_bound(num_walks, halt_prob, 10)
        rows.append([str(num_walks), str(halt_prob), str(bound), f"{measured:.0f}", f"{bound / measured:.1f}"])
    return rows


def _plot(result: object) -> None:
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    data = asdict(result)  # type: ignore[call-overload]
    axes.loglog(data["num_walks"], data["bounds"], "--", color="tab:gray", label="Theorem 3.1, 95 % of entries")
    axes.loglog(data["num_walks"], data["errors"], "o-", label=f"relative Frobenius error, slope {data['slope']:.2f}")
    axes.loglog(data["num_walks"], data["quantiles"], "s-", label="95 % quantile of an entry's error")
    axes.set(xlabel="walkers per node", ylabel="error", title="i.i.d. walks on an 8 x 8 grid")
    axes.legend(frameon=False, fontsize=8)
    report.OUTPUT.mkdir(exist_ok=True)
    figure.savefig(report.OUTPUT / "convergence.png", dpi=150)


if __name__ == "__main__":
    main()
