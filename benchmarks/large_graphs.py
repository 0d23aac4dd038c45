"""Masked attention on a grid and on a star of 2^18 nodes: time, memory and the chosen strategy."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks import report

SCRIPT = """
import json, resource, sys, time
import numpy as np, torch, topomask as tm

kind, size, symmetric = sys.argv[1], 2 ** int(sys.argv[2]), sys.argv[3] == "symmetric"
if kind == "grid":
    graph = tm.grid_graph(512, size // 512)
else:
    leaves = np.arange(1, size + 1)
    graph = tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start, before = time.perf_counter(), peak()
mask = tm.WalkMask(graph, num_walks=20, max_length=10, symmetric=symmetric, seed=0)
sampled = time.perf_counter()
sides = mask.walks if isinstance(mask.walks, tuple) else (mask.walks,)
q, k, v = torch.randn(3, 1, 1, graph.num_nodes, 16)
plan = tm.plan_attention(mask, 16, 16)
with torch.no_grad():
    out = tm.masked_attention(q, k, v, mask)
assert out.isfinite().all()
print(json.dumps({
    "graph": kind, "features": sys.argv[3], "nodes": graph.num_nodes, "strategy": plan.strategy, "reason": plan.reason,
    "seconds_sampling": sampled - start, "seconds_attention": time.perf_counter() - sampled,
    "feature_bytes_per_node": sum(side.num_bytes for side in sides) / graph.num_nodes,
    "peak_bytes_per_node": (peak() - before) / graph.num_nodes, "peak_gigabytes": peak() / 1e9,
}))
"""


def main() -> None:
    results = []
    for kind in ("grid", "star"):
        for features in ("symmetric", "asymmetric"):
            run = subprocess.run(
                [sys.executable, "-c", SCRIPT, kind, "18", features], capture_output=True, text=True, check=True
            )
            results.append(json.loads(run.stdout))
    rows = [
        [
            r["graph"],
            r["features"],
            f"{r['nodes']:,}",
            r["strategy"],
            f"{r['seconds_sampling']:.1f}",
            f"{r['seconds_attention']:.1f}",
            f"{r['feature_bytes_per_node']:,.0f}",
            f"{r['peak_bytes_per_node']:,.0f}",
            f"{r['peak_gigabytes']:.1f}",
        ]
        for r in results
    ]
    header = [
        "graph",
        "features",
        "nodes",
        "strategy",
        "sample s",
        "attend s",
        "features B/node",
        "peak B/node",
        "peak GB",
    ]
    report.table(header, rows)
    report.save("large_graphs", {"runs": results})


if __name__ == "__main__":
    main()
