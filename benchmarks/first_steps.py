"""Time every part of a fresh process up to the first gradient; run by ``start.py``."""

from __future__ import annotations

import json
import time


def main() -> None:
    marks = [("", time.perf_counter())]

    def mark(part: str) -> None:
        marks.append((part, time.perf_counter()))

    import torch

    mark("import of torch")
    import topomask as tm

    graph = tm.grid_graph(64, 64)
    mark("import of topomask")
    mask = tm.WalkMask(graph, seed=0)
    mark("first sampling")
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, graph.num_nodes, 64).unbind())
    out = tm.masked_attention(q, k, v, mask, strategy="pairs")
    mark("first forward")
    out.sum().backward()
    mark("first backward")
    total = marks[-1][1] - marks[0][1]
    tm.masked_attention(q, k, v, mask, strategy="pairs").sum().backward()
    mark("second forward and backward")
    parts = {name: end - marks[i][1] for i, (name, end) in enumerate(marks[1:])}
    print(json.dumps({"all until the first gradient": total} | parts))


if __name__ == "__main__":
    main()
