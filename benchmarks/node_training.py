"""Time and memory of a training step on a graph of 34,493 nodes, compared with PyG's GATConv and TransformerConv.

The graph of coauthor-physics; a linear layer from its 8,415 sparse features to width 64, two layers of attention with 8
heads, each with a residual connection, and a linear layer to 5 classes. A step is forward, cross entropy of the
training nodes, backward and AdamW. Walks are as in the tables of nodes: 16 of length 4, sampled once and shared by both
layers. If the data is missing, a random graph of that size with one feature in 250 replaces it. Memory is measured in a
new process.
"""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, TransformerConv

import topomask as tm
from benchmarks import measure, report
from benchmarks.processes import forget_peak, peak_bytes, resident_bytes, run_fresh
from topomask.data import MissingDataError, NodeBatch, node_set
from topomask.nn import MaskedAttention, SparseRows
from topomask.nn.sparse_rows import apply_linear

DIM, HEADS, DEPTH, CLASSES = 64, 8, 2, 5
NODES, EDGES, FEATURES = 34_493, 247_962, 8_415
WAYS = ("grf", "neighbours, softmax", "GATConv", "TransformerConv")


class Network(nn.Module):
    """Attention layers of one kind, each with a residual connection."""

    def __init__(self, way: str, batch: NodeBatch) -> None:
        super().__init__()
        self.embedding = nn.Linear(batch.x.shape[1], DIM)
        self.edge_index = batch.graph.to_edge_index()[0]
        # One mask for both layers, evaluated on the graph once.
        if way == "grf":
            walks = tm.WalkMask(batch.graph, num_heads=HEADS, symmetric=False, num_walks=16, max_length=4, seed=0)
            self.layers = nn.ModuleList(MaskedAttention(DIM, HEADS, walks) for _ in range(DEPTH))
        elif way == "neighbours, softmax":
            near = tm.NeighborMask(batch.graph)
            self.layers = nn.ModuleList(MaskedAttention(DIM, HEADS, near, kind="softmax") for _ in range(DEPTH))
        else:
            layer = {"GATConv": GATConv, "TransformerConv": TransformerConv}[way]
            self.layers = nn.ModuleList(layer(DIM, DIM // HEADS, HEADS) for _ in range(DEPTH))
        self.takes_edges = way.endswith("Conv")
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(DEPTH))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        """Logits of all nodes."""
        tokens = apply_linear(self.embedding, x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            normed = norm(tokens)
            tokens = tokens + (layer(normed, self.edge_index) if self.takes_edges else layer(normed))
        return self.head(tokens)


def load(quick: bool) -> NodeBatch:
    """The graph and its training nodes, or a random graph of the same size."""
    if not quick:
        try:
            return node_set("coauthor-physics").batch("train")
        except MissingDataError as error:
            print(f"{error}\nA random graph takes its place.\n")
    draw = np.random.default_rng(0)
    nodes, edges, features = (500, 3_000, 50) if quick else (NODES, EDGES, FEATURES)
    graph = tm.Graph.from_edges(np.unique(np.sort(draw.integers(nodes, size=(edges, 2)), axis=1), axis=0).T, nodes)
    x = sp.random_array((nodes, features), density=0.004, format="csr", dtype=np.float32, rng=draw)
    labels = torch.from_numpy(draw.integers(CLASSES, size=nodes))
    return NodeBatch(SparseRows.from_scipy(x), labels, graph, torch.arange(nodes))


def training_step(way: str, batch: NodeBatch) -> measure.Run:
    """A training step of a new network."""
    torch.manual_seed(0)
    model = Network(way, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x)[batch.nodes], batch.labels).backward()
        optimizer.step()

    return step


def measure_memory(way: str, quick: bool) -> dict[str, int]:
    """Memory of a process before the network is built, and the peak from then on, over three steps."""
    batch = load(quick)
    # The peak during loading does not count.
    gc.collect()
    before = resident_bytes()
    forget_peak()
    step = training_step(way, batch)
    for _ in range(3):
        step()
    return {"before": before, "peak": peak_bytes()}


def main(quick: bool = False) -> None:
    batch = load(quick)
    times = measure.interleave({way: training_step(way, batch) for way in WAYS}, 2 if quick else 9)
    memory = {way: run_fresh("benchmarks.node_training", way, *(["quick"] if quick else [])) for way in WAYS}
    print(f"{batch.graph.num_nodes:,} nodes, {batch.graph.num_edges:,} edges, width {DIM}, {HEADS} heads\n")
    rows = [
        [
            *row,
            f"{(memory[row[0]]['peak'] - memory[row[0]]['before']) / 1e6:,.0f}",
            f"{memory[row[0]]['peak'] / 1e9:.2f}",
        ]
        for row in measure.time_rows(times)
    ]
    report.table([*measure.TIME_HEADER, "more MB", "peak GB"], rows)
    bars = []
    for other in WAYS[2:]:
        found = measure.ratio(times["grf"], times[other])
        bars.append(report.Bar(f"time of a step, grf / {other}", found.value, shown=str(found)))
        more = [memory[way]["peak"] - memory[way]["before"] for way in ("grf", other)]
        bars.append(report.Bar(f"memory of a step, grf / {other}", more[0] / max(1, more[1])))
    shown = report.bars(bars, quick=quick)
    report.save("node_training", {"seconds": times, "memory": memory, "bars": shown, "quick": quick})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_memory(sys.argv[1], "quick" in sys.argv[2:])))
    else:
        main()
