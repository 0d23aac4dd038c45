"""Sampling of walks against its peers on 32,768 nodes: ratios of medians measured in one run.

20 walks of length 10 from every node of a grid (128 x 256) and of a Barabasi-Albert graph (3 edges per new node). Peers
are a vectorised sampler in torch, with its visits merged into (row, column, length) in the ways that torch offers, and
`torch_cluster.random_walk` where it is installed. Peers whose answer differs from ours by more than chance are refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import topomask as tm
from benchmarks import report
from topomask.ops.sample_walks import WalkSettings, sample_walks

NUM_WALKS, LENGTH = 20, 10
NUM_NODES = 32_768
MERGES = ("coalesce", "sort all keys", "sort rows", "sort lengths")


def barabasi_albert() -> tm.Graph:
    edges = np.array(nx.barabasi_albert_graph(NUM_NODES, 3, seed=0).edges).T
    return tm.Graph.from_edges(edges, NUM_NODES)


def torch_walks(graph: tm.Graph) -> Tensor:
    """Independent walkers all at once, [L + 1, N * W]; every node needs a neighbour."""
    row_ptr, columns = graph.tensors.row_ptr, graph.tensors.columns
    degrees = row_ptr.diff()
    node = torch.arange(graph.num_nodes).repeat_interleave(NUM_WALKS)
    visits = [node]
    for _ in range(LENGTH):
        node = columns[row_ptr[node] + (torch.rand(len(node)) * degrees[node]).to(torch.int64)]
        visits.append(node)
    return torch.stack(visits)


def merge(visits: Tensor, num_nodes: int, how: str) -> Any:
    """How many walkers of a row are at a column after a length: a sparse tensor, or sorted keys with counts."""
    lengths = torch.arange(LENGTH + 1)[:, None]
    rows = torch.arange(num_nodes).repeat_interleave(NUM_WALKS)
    if how == "coalesce":
        index = torch.stack([rows.expand_as(visits), visits, lengths.expand_as(visits)]).flatten(1)
        size = (num_nodes, num_nodes, LENGTH + 1)
        return torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), size, check_invariants=False).coalesce()
    if how == "sort all keys":
        keys = ((rows * num_nodes + visits) * (LENGTH + 1) + lengths).flatten()
        return torch.unique_consecutive(keys.sort().values, return_counts=True)
    if how == "sort rows":
        local = (visits * (LENGTH + 1) + lengths).to(torch.int32).view(LENGTH + 1, num_nodes, NUM_WALKS)
        local = local.transpose(0, 1).reshape(num_nodes, -1).sort(dim=1).values
        first = torch.arange(num_nodes)[:, None] * (num_nodes * (LENGTH + 1))
        return torch.unique_consecutive((local + first).flatten(), return_counts=True)
    # Kept apart by length, which is less than what the others do.
    keys = (rows * num_nodes + visits).sort(dim=1).values
    return [torch.unique_consecutive(part, return_counts=True) for part in keys]


def squares(visits: Tensor, num_nodes: int) -> float:
    """Mean square share of a row's walkers at a column after the last step, by sorted keys."""
    keys = torch.arange(num_nodes).repeat_interleave(NUM_WALKS) * num_nodes + visits
    counts = torch.unique(keys, return_counts=True)[1]
    return float((counts / NUM_WALKS).square().sum() / num_nodes)


def check(graph: tm.Graph, name: str, visits: Tensor) -> None:
    """Walks [L + 1, N * W] must follow edges and meet as often as ours do."""
    row_ptr, columns = graph.tensors.row_ptr, graph.tensors.columns
    edges = torch.repeat_interleave(torch.arange(graph.num_nodes), row_ptr.diff()) * graph.num_nodes + columns
    if not torch.isin(visits[:-1] * graph.num_nodes + visits[1:], edges).all():
        raise AssertionError(f"{name} steps where there is no edge")
    ours = tm.random_walks(graph, NUM_WALKS, LENGTH).flatten(0, 1).T
    found, expected = squares(visits[-1], graph.num_nodes), squares(ours[-1], graph.num_nodes)
    if abs(found / expected - 1) > 0.02:
        raise AssertionError(f"walkers of {name} meet with a probability of {found:.4f}, ours with {expected:.4f}")


def check_merged(graph: tm.Graph) -> None:
    """All ways to merge must find what ours finds in the same walks."""
    features = tm.sample_features(graph, NUM_WALKS, LENGTH, coupling="iid", normalization="row")
    visits = tm.random_walks(graph, NUM_WALKS, LENGTH).flatten(0, 1).T.contiguous()
    for how in MERGES:
        merged = merge(visits, graph.num_nodes, how)
        if how == "coalesce":
            counts = merged.values()
        elif how == "sort lengths":
            counts = torch.cat([part[1] for part in merged])
        else:
            counts = merged[1]
        loads = features.loads * NUM_WALKS
        if how == "sort lengths":
            counts, loads = counts.sort().values, loads.sort().values
        if len(counts) != len(loads) or not torch.allclose(counts.float(), loads):
            raise AssertionError(f"merging by {how!r} gives another answer")


def milliseconds(run: Callable[[], Any], repeats: int) -> list[float]:
    """Times of repeats after one run that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measure(graph: tm.Graph) -> dict[str, list[float]]:
    tensors, nodes = graph.tensors, torch.arange(graph.num_nodes)
    times: dict[str, list[float]] = {}
    check(graph, "the torch sampler", torch_walks(graph))
    check_merged(graph)
    for coupling in ("iid", "repelling"):
        times[f"bare walks, {coupling}"] = milliseconds(
            lambda c=coupling: tm.random_walks(graph, NUM_WALKS, LENGTH, coupling=c),  # type: ignore[misc]
            15,
        )
        times[f"features, {coupling}"] = milliseconds(
            lambda c=coupling: tm.sample_features(graph, NUM_WALKS, LENGTH, coupling=c),  # type: ignore[misc]
            15,
        )
        settings = WalkSettings(NUM_WALKS, LENGTH, 0.0, coupling, "sym", 0, 0)
        times[f"features, {coupling}, not widened"] = milliseconds(
            lambda s=settings: sample_walks(tensors, nodes, s, 0, torch.float32),  # type: ignore[misc]
            15,
        )
    times["torch, bare walks"] = milliseconds(lambda: torch_walks(graph), 7)
    for how in MERGES:
        times[f"torch, merged by {how}"] = milliseconds(
            lambda h=how: merge(torch_walks(graph), graph.num_nodes, h),  # type: ignore[misc]
            3,
        )
    if importlib.util.find_spec("torch_cluster") is None:
        print("torch_cluster is not installed, so it is left out.\n")
    else:
        random_walk = importlib.import_module("torch_cluster").random_walk
        rows = torch.repeat_interleave(nodes, tensors.row_ptr.diff())
        starts = nodes.repeat_interleave(NUM_WALKS)

        def run() -> Tensor:
            walks: Tensor = random_walk(rows, tensors.columns, starts, LENGTH, coalesced=False)
            return walks

        check(graph, "torch_cluster", run().T)
        times["torch_cluster, bare walks"] = milliseconds(run, 7)
    return times


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, graph in (("grid", tm.grid_graph(128, 256)), ("Barabasi-Albert", barabasi_albert())):
        times = measure(graph)
        medians = {what: statistics.median(values) for what, values in times.items()}
        print(f"{name}\n")
        report.table(
            ["what", "median ms", "least", "most"],
            [[n, f"{medians[n]:.1f}", f"{min(t):.1f}", f"{max(t):.1f}"] for n, t in times.items()],
        )
        merged = {how: medians[f"torch, merged by {how}"] for how in MERGES}
        plain = min(merged["coalesce"], merged["sort all keys"])
        ratios = {}
        for coupling in ("iid", "repelling"):
            walks, features = medians[f"bare walks, {coupling}"], medians[f"features, {coupling}, not widened"]
            ratios[f"torch / bare walks, {coupling} (bar for iid: at least 3)"] = medians["torch, bare walks"] / walks
            if "torch_cluster, bare walks" in medians:
                cluster = medians["torch_cluster, bare walks"]
                ratios[f"torch_cluster / bare walks, {coupling} (bar for iid: at least 4)"] = cluster / walks
            ratios[f"torch, coalesce or sorted keys / features, {coupling} (bar: at least 10)"] = plain / features
            ratios[f"torch, fastest of all merges / features, {coupling}"] = min(merged.values()) / features
        report.table(["ratio", "measured"], [[what, f"{value:.1f}"] for what, value in ratios.items()])
        results[name] = {"milliseconds": times, "ratios": ratios}
    report.save("sampling", results)


if __name__ == "__main__":
    main()
