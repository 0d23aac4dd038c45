"""Mask error of repelling walks of fixed length against the paper's halting i.i.d. walks, at equal walkers."""

from __future__ import annotations

import numpy as np
import torch

import topomask as tm
from benchmarks import report
from experiments.estimates import mask_errors

LENGTHS = torch.arange(11, dtype=torch.float64)
KNN_F = torch.tensor([1.0, 0.7, 0.5, 0.3], dtype=torch.float64)


def main() -> None:
    points = np.random.default_rng(0).random((1024, 3))
    grid, neighbours = tm.grid_graph(16, 16), tm.knn_graph(points, 3)
    cases = [
        ("16 x 16 grid, f = 0.5^k", grid, 20, 0.5**LENGTHS),
        ("16 x 16 grid, f = exp(-0.01 k)", grid, 100, torch.exp(-0.01 * LENGTHS)),
        ("16 x 16 grid, f = 0.5^k", grid, 100, 0.5**LENGTHS),
        ("3-NN of 1,024 points, 3 hops", neighbours, 27, KNN_F),
    ]
    rows, results = [], []
    for name, graph, num_walks, f in cases:
        iid = mask_errors(graph, f, num_walks, range(5), coupling="iid", halt_prob=0.1)
        repelling = mask_errors(graph, f, num_walks, range(5), coupling="repelling")
        rows.append(
            [
                name,
                str(num_walks),
                f"{np.mean(iid):.4f}",
                f"{np.mean(repelling):.4f}",
                f"{np.mean(iid) / np.mean(repelling):.1f}",
            ]
        )
        results.append({"case": name, "num_walks": num_walks, "iid": iid, "repelling": repelling})
    report.table(["mask", "walkers", "i.i.d., halt 0.1", "repelling", "ratio"], rows)
    lists = _neighbour_lists(points)
    print(
        f"27 repelling walkers of 3 hops on directed lists of 3 neighbours: largest error "
        f"{lists['largest_error']:.1e}; in {lists['merged_rows']:.1%} of rows groups merge, and they stay exact."
    )
    report.save("couplings", {"errors": results, "neighbour_lists": lists})


def _neighbour_lists(points: np.ndarray) -> dict[str, float]:
    graph = tm.knn_graph(points, 3, directed=True)
    w = torch.from_numpy(graph.adjacency("row").toarray())
    features = tm.sample_features(graph, 27, 3)
    exact = torch.stack([torch.linalg.matrix_power(w, k) for k in range(4)])
    error = features.to_dense(KNN_F)[0] - torch.einsum("k,kij->ij", KNN_F, exact)
    second = (exact[2] != 0).sum(dim=1)
    return {"largest_error": float(error.abs().max()), "merged_rows": float((second < 9).double().mean())}


if __name__ == "__main__":
    main()
